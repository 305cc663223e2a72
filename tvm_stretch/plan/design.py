"""A stretched network as data: segments, the depth and width of their branches, processors.

    {
     "format": "tvm_stretch.design",
     "version": 1,
     "segments": [
      {"start": "relu_8", "end": "relu_16", "merge": "concat",
       "branches": [{"processor": "cpu", "depth": 3, "width": 80},
                    {"processor": "opencl", "depth": 3, "width": 64}]}
     ]
    }

A segment is a run of blocks between two meeting points of the original network. Each branch has
``depth`` of its blocks, ``width`` channels each. Merges (passes/duplicate_and_scale.py draws them):

concat     the results are concatenated; the operators that follow read all of them
restore    a 1x1 convolution brings each result to its share of the original channels, then
           concat (NN-Stretch, figure 8)
project    as restore, and a 1x1 convolution also narrows the input of each branch (the published
           designs for EfficientNet)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tvm_stretch.base.errors import PlanError
from tvm_stretch.base.files import as_path, write_whole, writing
from tvm_stretch.base.formats import Format

FORMAT = Format("tvm_stretch.design", 1, "the design", PlanError, "write the design again")

MERGES = ("concat", "restore", "project")


@dataclass(frozen=True)
class Branch:
    """One branch of a segment."""

    processor: str  # the processor that runs it
    depth: int  # number of the segment's blocks that it keeps
    width: int  # channels of its blocks' results

    def __str__(self) -> str:
        return f"{self.processor} {self.depth}x{self.width}"


@dataclass(frozen=True)
class StretchedSegment:
    """A run of blocks and the branches that replace it; a single branch only scales it."""

    start: str  # the meeting point that the segment reads
    end: str  # the meeting point that it computes
    branches: tuple[Branch, ...]  # in the order in which their results are concatenated
    merge: str = "concat"  # one of `MERGES`

    def __post_init__(self) -> None:
        where = f"the segment {self.start!r} -> {self.end!r} of the design"
        if self.merge not in MERGES:
            raise PlanError(
                f"expected one of {', '.join(MERGES)} for merge of {where}, got {self.merge!r}; "
                "correct it"
            )
        if not self.branches:
            raise PlanError(f"expected branches for {where}, got none; leave the segment out")
        for branch in self.branches:
            if not isinstance(branch.processor, str):
                raise PlanError(
                    f"expected the name of a processor for each branch of {where}, got "
                    f"{branch.processor!r}; name one"
                )
            if type(branch.depth) is not int or type(branch.width) is not int:
                raise PlanError(
                    f"expected whole numbers for depth and width of {where}, got {branch}; "
                    "give numbers of blocks and of channels"
                )

    def __str__(self) -> str:
        return " | ".join(map(str, self.branches))


@dataclass(frozen=True)
class Design:
    """Which segments get branches, and how deep and wide each is; other segments stay as they are.

    Examples:
        >>> found = ts.stretch("resnet18.onnx", device="snapdragon-855")
        >>> found.best.design.write("design.json")
        >>> ts.stretching.Design.read("design.json") == found.best.design
        True
    """

    segments: tuple[StretchedSegment, ...]

    @property
    def processors(self) -> tuple[str, ...]:
        """The processors that run its branches."""
        names = (b.processor for segment in self.segments for b in segment.branches)
        return tuple(dict.fromkeys(names))

    @staticmethod
    def of_lists(
        segments: Sequence[tuple[str, str]],
        processors: Sequence[str],
        depths: Sequence[Sequence[int]],
        widths: Sequence[Sequence[int]],
        merge: str = "concat",
    ) -> Design:
        """A design from a list of depths and a list of widths per segment, as papers print them.

        Args:
            segments: start and end of each segment.
            processors: of the branches; a segment with one branch has no merge.
            depths: for each segment, the depth of each branch.
            widths: for each segment, the width of each branch.
            merge: of all segments.

        Raises:
            PlanError: the lists are of unequal lengths, or no lists.
        """
        for what, lists in (("depths", depths), ("widths", widths)):
            if not _are_lists(lists):
                raise PlanError(
                    f"expected a list of numbers for each segment for {what}, got {lists!r}; give "
                    "[[2, 1], [3, 2]], say"
                )
        if not len(segments) == len(depths) == len(widths):
            raise PlanError(
                f"expected depths and widths for each of {len(segments)} segments, got "
                f"{len(depths)} and {len(widths)}; give one list per segment"
            )
        stretches = []
        for index, ((start, end), deep, wide) in enumerate(
            zip(segments, depths, widths, strict=True)
        ):
            if len(deep) != len(wide) or len(deep) not in (1, len(processors)):
                raise PlanError(
                    f"expected as many depths as widths for segment {index}, one or "
                    f"{len(processors)}, got {list(deep)} and {list(wide)}; correct the lists"
                )
            each = zip(processors, deep, wide, strict=False)
            stretches.append(StretchedSegment(start, end, tuple(Branch(*b) for b in each), merge))
        return Design(tuple(stretches))

    @staticmethod
    def read(source: DesignLike) -> Design:
        """The design in a file, a dict of its JSON, or another design.

        Raises:
            PlanError: there is no such file, or it contains no design.
        """
        if isinstance(source, Design):
            return source
        return FORMAT.build(Design, *FORMAT.read_any(source, "Design"))

    def to_data(self) -> dict[str, object]:
        """The design as data for JSON."""
        return {**FORMAT.head, "segments": [asdict(segment) for segment in self.segments]}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON; the file appears complete or not at all."""
        with writing("the design", PlanError):
            write_whole(as_path(path, "the design"), json.dumps(self.to_data(), indent=1) + "\n")

    def __str__(self) -> str:
        return "; ".join(map(str, self.segments))


def _are_lists(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, list | tuple) for v in value)


DesignLike: TypeAlias = Design | Mapping[str, object] | str | os.PathLike[str]


@dataclass(frozen=True)
class Source:
    """Which channels of the original network a tensor of the stretched network stands for."""

    tensor: str  # of the original network
    channels: NDArray[np.int64]  # of that tensor; -1 for new channels
    # a name that all tensors inside a block of a branch with the same channels share; other
    # channels may be chosen for all of them together. Empty if the channels are fixed.
    tied: str = ""
    unit: int = 1  # number of neighbouring channels that stay together
    # whether a layer computes the tensor that the original network does not have
    is_new: bool = False
