"""Accelerators by name, and that their numbers can be true."""

import pytest

from simulator.hardware import GPUS, Gpu, UnknownGpuError, find_gpu


@pytest.mark.parametrize("name", ["h100-80gb", "H100-80GB", "h100_80gb_sxm5", "H100 80GB"])
def test_a_gpu_answers_to_its_names_in_any_case(name: str) -> None:
    assert find_gpu(name).interconnect_bytes_per_s == 450e9


def test_the_short_names_of_the_command_line_are_known() -> None:
    names = ["h100-80gb", "a100-80gb", "a100-40gb", "h200", "b200", "l4", "rtx-4090"]
    assert [find_gpu(name).name for name in names] == names


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownGpuError) as error:
        find_gpu("h100-8gb")
    assert str(error.value) == 'unknown gpu "h100-8gb"; did you mean "h100-80gb"?'


def test_a_name_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(UnknownGpuError, match=r'unknown gpu "abacus"; known: a100-40gb, .*, gaudi-3$'):
        find_gpu("abacus")


def test_no_two_gpus_share_a_name() -> None:
    names = [name for gpu in GPUS for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_numbers_are_of_the_right_magnitude(gpu: Gpu) -> None:
    """A slip of a thousand, or a sparse peak for a dense one, would stand out."""
    assert 15 * 2**30 <= gpu.memory_bytes <= 300 * 2**30
    # a whole pass over memory takes between 20 and 90 ms on all of them
    assert 0.02 <= gpu.memory_bytes / gpu.bandwidth_bytes_per_s <= 0.09
    # FLOPs that can be done while one byte is read
    assert 100 <= gpu.bf16_flops_per_s / gpu.bandwidth_bytes_per_s <= 600
    assert 30e9 <= gpu.interconnect_bytes_per_s <= gpu.bandwidth_bytes_per_s
    # the host is never nearer than a peer
    assert gpu.host_bytes_per_s is None or 30e9 <= gpu.host_bytes_per_s <= gpu.interconnect_bytes_per_s


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if gpu.fp8_flops_per_s], ids=lambda gpu: gpu.name)
def test_half_the_bits_do_not_do_more_than_twice_the_work(gpu: Gpu) -> None:
    assert gpu.fp8_flops_per_s is not None
    assert 1 <= gpu.fp8_flops_per_s / gpu.bf16_flops_per_s <= 2.03


@pytest.mark.parametrize(
    ("gpu", "peaks"),
    [
        ("a100-80gb", [312e12, 312e12, 312e12, 312e12]),
        ("h100-80gb", [989e12, 1979e12, 989e12, 989e12]),
        ("b200", [2250e12, 4500e12, 4500e12, 9000e12]),
    ],
)
def test_matrices_are_multiplied_in_16_bits_where_there_are_no_units_for_fewer(gpu: str, peaks: list[float]) -> None:
    """Hopper has FP8 units, but none that scale blocks of 32 elements: MXFP4 weights are widened there."""
    assert [find_gpu(gpu).flops_per_s(compute) for compute in ("bf16", "fp8", "mxfp8", "fp4")] == peaks
