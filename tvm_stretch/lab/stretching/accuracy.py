"""A target of accuracy for designs (NN-Stretch, equations 2 and 3), by training them.

    target = ts.stretching.AccuracyTarget(train, tests, ts.training.Training(epochs=20), loss=0.01)
    st = ts.stretch("resnet34.onnx", targets=["llvm", "opencl"], accuracy=target)
    st.best     # the fastest design that loses at most one point to the original network

The original network and the designs that the rules keep are trained together, with shared weights
(`lab/training/supernet.py`). Then each gets statistics of its own and classifies the tests. Trained
so, networks are worse than alone, so designs are compared with the original and not with a number.

    ts.stretching.AccuracyTarget(trained)     # your function: trains a network, tells its accuracy

A function of the caller trains one network after the other instead, the original first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, SupportsFloat, TypeAlias

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.progress import say
from tvm_stretch.lab.stretching.judge import Candidate, Candidates

if TYPE_CHECKING:
    from tvm_stretch.lab.stretching.stretching import Stretching
    from tvm_stretch.lab.training import TrainableNetwork, Training
    from tvm_stretch.lab.training.data import Loader

Train: TypeAlias = "Callable[[TrainableNetwork], float]"


@dataclass(frozen=True)
class AccuracyTarget:
    """How much accuracy a design may lose, and the images that decide.

    Attributes:
        train: a loader of batches, each images and labels; or a function that trains a network (a
            ``torch.nn.Module``) and returns the share of its tests that it classifies correctly.
        tests: a loader of other images and labels; none beside a function.
        training: how all designs are trained together; none beside a function.
        loss: the share of the tests that a design may classify worse than the original network.

    Examples:
        >>> loader = [(torch.randn(2, 3, 224, 224), torch.tensor([0, 1]))]
        >>> training = ts.training.Training(epochs=1, rate=0.01)
        >>> target = ts.stretching.AccuracyTarget(loader, loader, training, loss=1.0)
        >>> ts.stretch("resnet18.onnx", device="snapdragon-855", accuracy=target).best.accuracy >= 0
        True
    """

    train: Loader | Train
    tests: Loader = ()
    training: Training | None = None
    loss: float = 0.0

    def __post_init__(self) -> None:
        from tvm_stretch.lab.training import Training

        if callable(self.train) and self.training is not None:
            raise InputError(
                "expected no training beside a function for train, got one; the function trains"
            )
        if not callable(self.train) and not isinstance(self.training, Training):
            raise InputError(
                f"expected a ts.training.Training for training, got {self.training!r:.80}; give "
                "ts.training.Training(epochs=20)"
            )
        is_number = isinstance(self.loss, int | float) and not isinstance(self.loss, bool)
        if not is_number or not 0 <= self.loss <= 1:
            raise InputError(
                f"expected a share from 0 to 1 for loss, got {self.loss!r}; 0.01 is one point"
            )


def with_accuracy(result: Stretching, target: AccuracyTarget) -> Stretching:
    """The stretching in which a design that loses more than the target allows is pruned.

    Raises:
        InputError: a loader gives no images, or images of another size.
        InstallError: torch is not installed.
        TrainingError: training ends at NaN.
    """
    kept = [candidate for candidate in result.candidates if candidate.kept]
    if not kept:
        return result
    original, *shares = _accuracies(result, kept, target)
    say(f"the original network is right in {original:.1%} of the tests")
    judged = [
        _judged(candidate, share, original, target.loss)
        for candidate, share in zip(kept, shares, strict=True)
    ]
    others = [candidate for candidate in result.candidates if not candidate.kept]
    listed = sorted([*judged, *others], key=lambda candidate: not candidate.kept)
    return replace(result, candidates=Candidates(listed), accuracy=original)


def _accuracies(result: Stretching, kept: list[Candidate], target: AccuracyTarget) -> list[float]:
    """The original's accuracy and those of the candidates."""
    from tvm_stretch.lab.training import to_torch

    nets = [to_torch(result.mod), *(result.to_torch(candidate.design) for candidate in kept)]
    return _in_supernet(nets, target) if target.training else _by(target.train, nets)


def _by(train: object, nets: Sequence[TrainableNetwork]) -> list[float]:
    """What the caller's function tells of each network.

    Raises:
        InputError: it returns no share.
    """
    assert callable(train)
    shares = []
    for number, net in enumerate(nets, 1):
        say(f"training network {number} of {len(nets)}")
        share = train(net)
        if not isinstance(share, SupportsFloat) or not 0 <= float(share) <= 1:
            raise InputError(
                f"expected a share from 0 to 1 from the function for train, got {share!r:.80}; "
                "return the share of tests that the network classifies correctly"
            )
        shares.append(float(share))
    return shares


def _in_supernet(nets: Sequence[TrainableNetwork], target: AccuracyTarget) -> list[float]:
    """Accuracies of networks that are trained together, with shared weights."""
    from tvm_stretch.lab.training import Supernet, accuracy, fit_supernet, recalibrate

    assert target.training is not None and not callable(target.train)
    supernet = Supernet(nets)
    say(f"training {len(nets)} networks together")
    fit_supernet(supernet, target.train, target.training)
    device, shares = next(supernet.parameters()).device, []
    for index in range(len(nets)):
        net = supernet.candidate(index).to(device)
        recalibrate(net, target.train)
        shares.append(accuracy(net, target.tests))
    return shares


def _judged(candidate: Candidate, share: float, original: float, loss: float) -> Candidate:
    rule = ""
    if share < original - loss:
        rule = f"accuracy (at least {original - loss:.1%} of the tests, got {share:.1%})"
    return replace(candidate, accuracy=share, rule=rule)
