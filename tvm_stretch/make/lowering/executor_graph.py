"""The graph that the executor runs: plain data, written as JSON.

    {"tensors": [{"shape": [1, 16, 8, 8], "dtype": "float32", "kind": "input", …}, …],
     "nodes":   [{"kernel": "fused_conv2d_add_relu", "name": "lv0", "inputs": [0, 1, 2], …}, …],
     "processors": [{"name": "cpu", "kind": "cpu"}, {"name": "opencl", "kind": "opencl"}],
     "regions": [{"name": "r0", "processor": 1, "nodes": [0, 1], "after": [], …}, …]}

A tensor is a window on memory. `kind` says which memory and `offset` where in it:

    input, output   memory of the caller; `buffer` is the position in `inputs` / `outputs`, `kept`
    arena           scratch memory of one instance, reused during a run
    constant        the weights as the artifact stores them
    prepared        results of the `prepare` nodes, computed from weights when the artifact is
    loaded

Several tensors may share bytes, so that reshape, slices and concat cost nothing. Rows of a feature
map are one piece in each block of channels: a tensor with `strides`.

Each node belongs to exactly one region. Regions are listed in an order in which they could run one
after the other; the regions of one processor do run in that order, and a region begins when the
regions in its `after` are complete. All processors share one memory plan: a processor with memory
of its own keeps a mirror, and `receives` and `sends` list the tensors that are copied between equal
offsets.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from tvm_stretch.base.errors import ArtifactError
from tvm_stretch.base.formats import Format
from tvm_stretch.network.provenance import Provenance, to_data

FORMAT = Format("tvm_stretch.graph", 5, "the graph", ArtifactError, "export the model again")
COPY_KERNEL = "tvm_stretch.copy"
"""Name of the one kernel that every processor provides: it copies input 0 to output 0."""
WRITE_KERNEL = "tvm_stretch.write"
"""Name of a kernel of the CPU that writes rows (input 1) at places (input 0) of a tensor (output 0)
and tells with which bytes the rows begin (output 1)."""

TensorKind = Literal["input", "output", "arena", "constant", "prepared"]


@dataclass(frozen=True)
class Tensor:
    """A window on one of the executor's memories."""

    shape: tuple[int, ...]  # extents
    dtype: str  # of the elements
    kind: TensorKind  # which memory
    buffer: int  # which input or output
    offset: int  # bytes before the first element
    bytes: int  # from the first to the end of the last element
    # elements from one to the next in each dimension; empty if the tensor is dense
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Node:
    """One kernel call."""

    kernel: str  # the name of its function
    name: str  # for people
    inputs: tuple[int, ...]  # tensor ids, its first arguments in order
    outputs: tuple[int, ...]  # tensor ids, its last arguments
    # the operators of the plan that it computes or helps
    provenance: Provenance = field(default_factory=Provenance)
    # for streams, if it can compute a rectangle, which its last output names: the position of the
    # input that it reads in windows; for rows and columns the step of windows, the padding and the
    # size of a window; rows and columns that are computed together; the side of tiles in which each
    # pixel's rounding depends on all inputs, as Winograd's does
    reach: tuple[int, ...] = ()
    # a tensor of one byte, and 1 or 0: unless it is true, or false, nothing reads the outputs, and
    # the CPU skips the node
    when: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProcessorSpec:
    """A processor that runs regions; the one at index 0 is the CPU, which also runs `prepare`."""

    name: str  # its name in plans and messages
    kind: str  # the part of the executor that drives it: `cpu`, `opencl`, ...
    max_share: float = 1.0  # the share of the time for which it may be busy


CPU = ProcessorSpec("cpu", "cpu")


@dataclass(frozen=True)
class Region:
    """Nodes that one processor runs as one unit."""

    name: str  # as in the plan
    processor: int  # index in the graph's processors
    nodes: tuple[int, ...]  # ids, in the order in which they run
    # regions of other processors that must be complete before this one begins, without those
    # that are implied by others or by the order of its own processor
    after: tuple[int, ...]
    # tensors that the region reads, that another processor or the caller wrote last, and that
    # its processor has not received since
    receives: tuple[int, ...]
    # tensors that the region writes and that another processor or the caller reads
    sends: tuple[int, ...]


@dataclass(frozen=True)
class Port:
    """An input or output of the network."""

    name: str
    tensor: int


@dataclass(frozen=True)
class State:
    """An input of `held` that holds what an output had after the last run; they are in order."""

    output: int  # its position in `outputs` and `kept`
    axis: int = 0
    grown: int = 0  # rows along `axis` that a run appends; the input's first ones are as many
    # distance in bytes from the input to the output, which is the next input as it lies: of several
    # lengths, the greatest one. 0 if they have memory of their own
    slide: int = 0
    # position in `outputs` and `kept` of the first bytes of the rows that a run writes, if the rest
    # of the output is a copy of the input that the executor makes; otherwise -1
    starts: int = -1
    row: int = 0  # bytes of such a row
    initial: int = -1  # offset of its first value in the weights; -1: zeros
    # position in `outputs` of the scores from which its next value is drawn, and how; otherwise -1
    scores: int = -1
    sampling: dict[str, float] = field(default_factory=dict)
    # by how much it falls for each value that is taken back after a run; -1: it cannot be
    rewind: int = -1


@dataclass(frozen=True)
class Guard:
    """The values that are allowed in an input or output; checked after each run."""

    tensor: int  # its id
    # least value; several values if each position in the last dimension has its own
    low: tuple[int, ...]
    high: tuple[int, ...]  # greatest value; both are empty if the values must not be zero
    what: str  # describes the tensor in messages


@dataclass(frozen=True)
class LengthSpec:
    """The ports of the plan at the same position, if a graph has several lengths."""

    name: str  # for people: "n=64"
    sizes: dict[str, int]  # of the dimensions that `lengths` of ``ts.compile`` names
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    held: tuple[Port, ...] = ()
    kept: tuple[Port, ...] = ()
    guards: tuple[Guard, ...] = ()
    slides: tuple[int, ...] = ()  # for each state, as `State.slide`


@dataclass(frozen=True)
class Span:
    """A dimension of `lengths` whose sizes in between are padded to the next length."""

    name: str
    low: int
    high: int
    # by how many elements each axis of each input and output grows with a position
    inputs: dict[str, tuple[int, ...]]
    outputs: tuple[tuple[int, ...], ...]
    # inputs whose padding has this value, which hides it; that of others may be anything
    masks: dict[str, int] = field(default_factory=dict)
    hiding: tuple[str, ...] = ()  # masks that have to show a position in each row


@dataclass(frozen=True)
class PlanSpec:
    """One of several plans of a graph; the graph lists the regions of all plans in order."""

    name: str  # for people
    regions: int  # number of this plan's regions
    expected_ns: int = 0  # how long an undisturbed run takes; 0 if unknown
    plan: dict[str, Any] = field(default_factory=dict)  # the plan from which the regions were made
    # nanoseconds of each region's kernels and transfers in such a run; empty if unknown
    work_ns: tuple[int, ...] = ()
    # the power of such a run, if plans are chosen by energy and all are known; otherwise 0
    milliwatts: int = 0


@dataclass(frozen=True)
class Graph:
    """Everything that the executor needs except the bytes of weights and the code of kernels.

    With `spare`, the CPU has the kernels of all nodes and runs them if another processor fails.
    `kept` are outputs after `outputs` that only `guards` read, or that become `states`: the inputs
    after `inputs`, which the executor keeps from run to run. If there are `plans`, a run uses the
    regions of one of them; all plans use the same weights and the same arena. If there are
    `lengths`, each plan computes the network for inputs of its own shapes; the graph's own ports
    are those of the first length, and a port's memory has room for any length. With `streams`, each
    tensor has bytes of its own, so that every feature map of the last run is still there.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    tensors: tuple[Tensor, ...]
    prepare: tuple[Node, ...]
    nodes: tuple[Node, ...]
    processors: tuple[ProcessorSpec, ...]
    regions: tuple[Region, ...]
    arena_bytes: int
    weights_bytes: int
    prepared_bytes: int
    threads: int = 1
    package_version: str = ""
    target: dict[str, Any] = field(default_factory=dict)
    cpu_features: tuple[str, ...] = ()
    plan: dict[str, Any] = field(default_factory=dict)
    spare: bool = False
    guards: tuple[Guard, ...] = ()
    kept: tuple[Port, ...] = ()
    held: tuple[Port, ...] = ()
    states: tuple[State, ...] = ()
    plans: tuple[PlanSpec, ...] = ()
    lengths: tuple[LengthSpec, ...] = ()
    spans: tuple[Span, ...] = ()
    network: str = ""  # what the network is called, for people
    streams: bool = False
    within_ns: int = 0  # how long a run may take if plans are chosen by energy; 0: any time

    def first_region(self, number: int) -> int:
        """Index of a plan's first region."""
        return sum(plan.regions for plan in self.plans[:number])

    def first_node(self, number: int) -> int:
        """Index of a plan's first node."""
        return sum(len(region.nodes) for region in self.regions[: self.first_region(number)])

    def of_plan(self, number: int) -> Graph:
        """The graph with one of its plans; the graph itself if it has no others."""
        if not self.plans:
            return self
        first, node, chosen = self.first_region(number), self.first_node(number), self.plans[number]
        own = self.regions[first : first + chosen.regions]
        count = sum(len(region.nodes) for region in own)
        regions = tuple(
            replace(
                region,
                nodes=tuple(other - node for other in region.nodes),
                after=tuple(other - first for other in region.after),
            )
            for region in own
        )
        nodes = self.nodes[node : node + count]
        ports = self.with_length(number) if self.lengths else self
        return replace(ports, nodes=nodes, regions=regions, plan=chosen.plan, plans=())

    def with_length(self, number: int) -> Graph:
        """The graph whose ports are those of one of its lengths."""
        own = self.lengths[number]
        return replace(
            self,
            inputs=own.inputs,
            outputs=own.outputs,
            held=own.held,
            kept=own.kept,
            guards=own.guards,
            lengths=(),
        )

    def to_json(self) -> str:
        """The graph as JSON; the same graph always gives the same text."""
        data = asdict(self)
        for tensor in data["tensors"]:
            if not tensor["strides"]:
                del tensor["strides"]
        for processor in data["processors"]:
            if processor["max_share"] == 1:
                del processor["max_share"]
        for kind in ("prepare", "nodes"):
            for node, written in zip(getattr(self, kind), data[kind], strict=True):
                written["provenance"] = to_data(node.provenance)
                for name in ("reach", "when"):
                    if not getattr(node, name):
                        del written[name]
        return json.dumps({**FORMAT.head, **data}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Graph:
        """Read what `to_json` wrote."""
        return FORMAT.build(Graph, FORMAT.parse(text, "the graph"), "the graph")
