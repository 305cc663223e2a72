"""Register tiles read the input channels that exist and belong to their groups, each once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tvm_stretch.targets.kernels.channel_runs import ChannelRun, channel_runs, runs_of_groups
from tvm_stretch.targets.kernels.layers import ConvShape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import choose

AVX512 = VectorMachine(16, 32, False, 2048 * 1024, 1)


@given(
    widths=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    groups=st.integers(1, 4),
    lanes=st.sampled_from([4, 8, 16]),
)
def test_each_vector_reads_the_channels_of_its_groups_once(widths, groups, lanes):
    inputs, outputs = widths
    vectors = -(-outputs * groups // lanes)
    read = Counter(
        ((run.block + b) * lanes + lane, vector)
        for run in runs_of_groups(widths, groups, lanes, vectors)
        for b in range(run.blocks)
        for lane in range(*run.lanes)
        for vector in range(*run.vectors)
    )
    assert set(read.values()) == {1}
    wanted = {
        (group * inputs + channel, out // lanes)
        for group in range(groups)
        for out in range(group * outputs, (group + 1) * outputs)
        for channel in range(inputs)
    }
    # a vector of several groups reads all channels of those
    assert wanted <= set(read)
    assert len(read) <= sum(
        inputs * len({min(v * lanes + i, groups * outputs - 1) // outputs for i in range(lanes)})
        for v in range(vectors)
    )


def test_whole_blocks_are_one_run():
    assert runs_of_groups((64, 64), 1, 16, 2) == [ChannelRun(0, 4, (0, 16), (0, 2))]


def test_groups_of_24_channels_multiply_three_quarters():
    """Two in three vectors, no Winograd: 96 of 144 products; 48 of 96 where one is left."""
    shape = ConvShape(1, 168, (28, 28), 168, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 7)
    config = choose(shape, AVX512, 16)
    assert (config.merged_groups, config.oc_blocks) == (2, 3)
    for vectors, products in ((3, 96), (2, 48)):
        runs = channel_runs(config, vectors)
        assert sum(run.channels * (run.vectors[1] - run.vectors[0]) for run in runs) == products


def test_last_groups_that_fill_as_many_vectors_read_as_the_others():
    """Four groups of 12 fill three vectors, as the three that are left do."""
    config = choose(ConvShape(1, 84, (14, 14), 84, (1, 1), groups=7), AVX512, 16)
    assert (config.merged_groups, config.oc_blocks) == (4, 3)
    runs = channel_runs(config, 3)
    assert sum(run.channels * (run.vectors[1] - run.vectors[0]) for run in runs) == 3 * 24


def test_a_tail_of_channels_is_not_read_as_a_block():
    shape = ConvShape(1, 20, (28, 28), 20, (1, 1))
    runs = channel_runs(choose(shape, AVX512, 16), 2)
    assert sum(run.channels for run in runs) == 20
