"""What accelerators cost: a source and a date for each price, and a person's own where they differ."""

import datetime

import pytest

from simulator.hardware import find_gpu
from simulator.prices import Price, known_prices, prices_in, read_prices
from simulator.scenario import ScenarioError


def test_every_known_price_has_a_source_a_date_and_an_accelerator():
    for name, price in known_prices().items():
        assert find_gpu(name).name == name
        assert 0 < price.dollars_per_hour < 20
        assert price.source
        assert price.date >= datetime.date(2026, 6, 1)


def test_a_price_may_be_a_number_or_a_table():
    prices, mistakes = prices_in(
        {"H100": 2, "h200": {"dollars_per_hour": 3.5, "source": "a contract", "date": datetime.date(2026, 11, 1)}},
        "[prices]",
    )
    assert mistakes == []
    assert prices == {
        "h100-80gb": Price(2.0, "[prices]"),
        "h200": Price(3.5, "a contract", datetime.date(2026, 11, 1)),
    }


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("h200 = -1", ["p.toml h200: must be dollars an hour, a number of at least 0, got -1"]),
        ("h200 = true", ["p.toml h200: must be dollars an hour, a number of at least 0, got True"]),
        ("h200 = inf", ["p.toml h200: must be dollars an hour, a number of at least 0, got inf"]),
        ("[h200]\nsource = 3\ndollars_per_hour = 1", ["p.toml h200: source must be text, got 3"]),
        ("[h200]\ndate = 3\ndollars_per_hour = 1", ["p.toml h200: date must be a date such as 2026-09-25, got 3"]),
        ("[h200]\nprice = 3\ndollars_per_hour = 1",
         ["p.toml h200: unknown key 'price'; known: dollars_per_hour, source, date"]),
        ("h201 = 1\nh200 = 'x'",
         ['p.toml h201: unknown gpu "h201"; did you mean "h200"?',
          "p.toml h200: must be dollars an hour, a number of at least 0, got 'x'"]),
    ],
)  # fmt: skip
def test_all_mistakes_of_a_file_are_told(text, mistakes, tmp_path):
    (tmp_path / "p.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError) as refused:
        read_prices(tmp_path / "p.toml")
    assert [line.strip() for line in str(refused.value).splitlines()[1:]] == mistakes


def test_a_file_that_is_no_toml_is_one_line(tmp_path):
    (tmp_path / "p.toml").write_text("h200 = ", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"--prices: .*p.toml is not TOML"):
        read_prices(tmp_path / "p.toml")
