"""Equal operators of torch are decomposed once, with the answer of the whole program."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tvm_stretch.read.torch import decomposing  # noqa: E402


class _Layers(torch.nn.Module):
    """Equal layers with ReLU in place, dropout and a result in several parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(6))
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.dropout(torch.relu_(self.norm(layer(x))), 0.1, self.training)
        first, second = x.chunk(2, 1)
        return first.flatten(1), second.max(1).values


class _Widths(torch.nn.Module):
    """Layers of as many widths as there are, one of them with its channels last in memory."""

    def __init__(self, by_batch: bool = False) -> None:
        super().__init__()
        widths = (4, 6, 8, 10, 12)
        self.layers = torch.nn.ModuleList(
            torch.nn.Conv2d(before, width, 3, padding=1)
            for before, width in zip((4, *widths), widths, strict=False)
        )
        self.norms = torch.nn.ModuleList(
            torch.nn.BatchNorm2d(width, track_running_stats=not by_batch) for width in widths
        )

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.nn.functional.silu(norm(layer(x)), inplace=True)
        return x.contiguous(memory_format=torch.channels_last).relu()


class _Mask(torch.nn.Module):
    """Parts of a tensor are written before the whole is read, as the masks of Swin are."""

    def forward(self, x):
        mask = x.new_zeros(6, 6)
        for number, rows in enumerate((slice(0, 2), slice(2, 5), slice(5, 6))):
            mask[rows].fill_(number)
        different = mask.view(4, 9).unsqueeze(1) - mask.view(4, 9).unsqueeze(2)
        return torch.where(different == 0, 0.0, -1.0) + x


class _OtherName(torch.nn.Module):
    """A tensor is written after a view of it was made, which is read later."""

    def forward(self, x):
        x = x + 1
        view = x[:, 1:]
        x.mul_(3)
        return view * 2


class _Zeros(torch.nn.Module):
    """Arguments that are equal and yet not the same."""

    def forward(self, x):
        return torch.full_like(x, 0.0).copysign(x) + 1 / torch.full_like(x, -0.0), x.clamp(min=1)


class _Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count


def _counted(monkeypatch, module, *inputs):
    """The program, both ways, and the numbers of nodes that torch was given."""
    program = torch.export.export(module.eval(), inputs)
    run, given = torch.export.ExportedProgram.run_decompositions, []

    def noted(self, *args, **kwargs):
        given.append(len(self.graph.nodes))
        return run(self, *args, **kwargs)

    table = torch.export.default_decompositions()
    whole = program.run_decompositions(table)
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", noted)
    return program, whole, decomposing.decompose(program, table), given


def _flat(result):
    return [part.detach().numpy() for part in torch.utils._pytree.tree_leaves(result)]


CASES = {
    "layers": (_Layers(), torch.rand(2, 4, 8, 8)),
    "widths": (_Widths(), torch.rand(2, 4, 8, 8)),
    "norms by the batch": (_Widths(by_batch=True), torch.rand(2, 4, 8, 8)),
    "mask": (_Mask(), torch.rand(4, 9, 9)),
    "other name": (_OtherName(), torch.rand(2, 3)),
    "zeros": (_Zeros(), torch.rand(2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_and_answers_are_those_of_the_whole_program(name, monkeypatch) -> None:
    module, *inputs = CASES[name]
    _, whole, ours, _ = _counted(monkeypatch, module, *inputs)
    wanted, got = (
        sorted(str(node.target) for node in program.graph.nodes if node.op == "call_function")
        for program in (whole, ours)
    )
    assert got == wanted
    for one, other in zip(
        _flat(whole.module()(*inputs)), _flat(ours.module()(*inputs)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_torch_is_given_each_kind_once(monkeypatch) -> None:
    program, _, _, given = _counted(monkeypatch, *CASES["layers"])
    assert len(given) == 1
    kinds = 1 + 3 + 1 + 5 + 1 + 1 + 1  # convolution, norm, ReLU, dropout, parts, flatten, maximum
    assert given[0] < 3 * kinds < len(program.graph.nodes)


def test_a_width_makes_no_kind_and_each_copy_has_its_own_sizes(monkeypatch) -> None:
    _, whole, ours, given = _counted(monkeypatch, *CASES["widths"])
    kinds = 1 + 1 + 1 + 1  # convolution, norm, SiLU, the order of memory
    inputs = 3 + 5 + 1 + 1
    assert given == [kinds + inputs + 1]
    assert _shapes(ours) == _shapes(whole)


def test_norms_by_the_batch_have_their_own_sizes(monkeypatch) -> None:
    _, whole, ours, _ = _counted(monkeypatch, *CASES["norms by the batch"])
    assert _shapes(ours) == _shapes(whole)


def _shapes(program):
    """Shapes and types of all results of operators, sorted."""
    return sorted(
        str(
            [(part.shape, part.dtype) for part in torch.utils._pytree.tree_leaves(node.meta["val"])]
        )
        for node in program.graph.nodes
        if node.op == "call_function"
    )


def test_a_program_that_changes_a_buffer_is_decomposed_as_a_whole(monkeypatch) -> None:
    program, _, ours, given = _counted(monkeypatch, _Counter(), torch.rand(3))
    assert given == [len(program.graph.nodes)]
    assert ours.graph_signature.buffers_to_mutate
