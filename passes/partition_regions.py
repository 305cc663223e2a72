"""Cut ``main`` along its tags: one function per region, and a ``main`` that only calls them.

    main(x), regions = [["r0", "cpu", ["conv2d"]], ["r1", "opencl", ["relu", "add"]]]:
        conv2d = R.nn.conv2d(x, w)
        relu = R.nn.relu(conv2d)
        add = R.add(relu, conv2d)
        return add
    ->
    r0(x), processor = "cpu":              r1(conv2d), processor = "opencl":
        conv2d = R.nn.conv2d(x, w)             relu = R.nn.relu(conv2d)
        return conv2d                          add = R.add(relu, conv2d)
                                               return add
    main(x):
        conv2d = r0(x)
        add = r1(conv2d)
        return add

Only tensors cross between regions, as a result of one and a parameter of the other.
Several results form a tuple; constants stay where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm
from tvm import relax

from tvm_stretch.network.operators import PROCESSOR, Calls, Leaf
from tvm_stretch.network.provenance import hide_dots
from tvm_stretch.passes.tag import REGIONS


@tvm.transform.module_pass(opt_level=0, name="PartitionRegions")
class PartitionRegions:
    """See the module docstring; a ``main`` without tags stays as it is."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        main = mod["main"]
        if REGIONS not in (main.attrs or {}):
            return mod
        regions = _find_regions(main)
        kept = {var: function for var, function in mod.functions.items() if var.name_hint != "main"}
        builder = relax.BlockBuilder(tvm.IRModule(kept, attrs=mod.attrs))
        for region in regions:
            builder.add_func(_outline(region), region.name)
        _call_regions(builder, main, regions)
        return builder.get()


@dataclass
class _Region:
    """One region with the tensors that enter and leave it."""

    name: str
    processor: str
    operators: list[str]
    calls: Calls
    params: dict[Leaf, relax.Var] = field(default_factory=dict)
    results: list[Leaf] = field(default_factory=list)


def _find_regions(main: relax.Function) -> list[_Region]:
    """The regions in order, with the tensors that each reads and returns."""
    calls = Calls(main)
    regions = [
        _Region(str(name), str(processor), [str(o) for o in operators], calls)
        for name, processor, operators in main.attrs[REGIONS]
    ]
    owner = {name: region for region in regions for name in region.operators}

    def add_result(leaf: Leaf) -> None:
        producer = owner.get(leaf.var.name)
        if producer is not None and leaf not in producer.results:
            producer.results.append(leaf)

    for region in regions:
        for name in region.operators:
            for leaf in calls.leaves(calls.calls[name]):
                if owner.get(leaf.var.name) is not region and leaf not in region.params:
                    region.params[leaf] = relax.Var(leaf.name, leaf.type)
                    add_result(leaf)
    for leaf in calls.leaves(calls.result):
        add_result(leaf)
    return regions


def _outline(region: _Region) -> relax.Function:
    """The function of a region."""
    builder = relax.BlockBuilder()  # a new builder, so that operators keep their names
    values: dict[Leaf, relax.Expr] = dict(region.params)

    def value(leaf: Leaf) -> relax.Expr:
        if leaf not in values:
            emit = builder.emit_output if leaf in region.results else builder.emit
            whole = values[Leaf(leaf.var)]
            values[leaf] = emit(relax.TupleGetItem(whole, leaf.index), name_hint=leaf.name)
        return values[leaf]

    attrs = {PROCESSOR: region.processor}
    with builder.function(region.name, list(region.params.values()), attrs=attrs):
        with builder.dataflow():
            for name in region.operators:
                leaf = Leaf(region.calls.variables[name])
                emit = builder.emit_output if leaf in region.results else builder.emit
                call = region.calls.rebuild(region.calls.calls[name], value)
                values[leaf] = emit(call, name_hint=hide_dots(name))
            results = [value(leaf) for leaf in region.results]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return builder.get()[region.name]


def _call_regions(
    builder: relax.BlockBuilder, main: relax.Function, regions: list[_Region]
) -> None:
    """Add ``main``, which calls each region once and in order."""
    calls = Calls(main)
    values = {Leaf(param): param for param in main.params}
    returned = set(calls.leaves(calls.result))
    attrs = {key: value for key, value in dict(main.attrs or {}).items() if key != REGIONS}
    with builder.function("main", list(main.params), attrs=attrs):
        with builder.dataflow():
            for region in regions:
                function = builder.get().get_global_var(region.name)
                call: relax.Expr = relax.Call(function, [values[leaf] for leaf in region.params])
                several = len(region.results) != 1
                if several:
                    call = builder.emit(call, name_hint=f"{region.name}_results")
                for index, leaf in enumerate(region.results):
                    emit = builder.emit_output if leaf in returned else builder.emit
                    result = relax.TupleGetItem(call, index) if several else call
                    values[leaf] = emit(result, name_hint=leaf.name)
        builder.emit_func_output(calls.rebuild(calls.result, values.__getitem__))
