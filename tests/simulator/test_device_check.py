"""The device check itself, on a CPU and small: it is there for whoever has a device."""

from tests.docs.pages import ROOT, run_command

SMALL = "--device cpu --gib 10 --fraction 0.01 --requests 5 --bandwidth-gib 0.02 --gpu h200"


def test_all_checks_hold_on_a_cpu():
    printed = run_command(f"scripts/device_check {SMALL} && echo all hold", ROOT)
    rows = [line.split(" | ")[1] for line in printed.splitlines() if line.startswith("| ") and "holds" not in line]
    assert rows == ["yes"] * 23
    assert printed.endswith("|\nall hold\n")
