"""An SLO may be written in the ways that people write it, and means the same in each."""

from __future__ import annotations

import pytest

from sim.errors import InputError
from sim.scenario import Slo, SloTarget, parse_slo

TTFT_1S = SloTarget("ttft", 1.0, 99.0)
TPOT_40MS = SloTarget("tpot", 0.04, 99.0)


def test_one_string_and_a_mapping_mean_the_same() -> None:
    assert parse_slo("ttft_p99=1s,tpot_p99=40ms").targets == (TTFT_1S, TPOT_40MS)
    assert Slo.model_validate({"ttft_p99": "1s", "tpot_p99": "40ms"}).targets == (TTFT_1S, TPOT_40MS)
    assert Slo.model_validate({"ttft_p99": "1000 ms", "tpot_p99": "0.04s"}).targets == (TTFT_1S, TPOT_40MS)


def test_the_goodput_form_of_vllm_is_in_milliseconds_and_has_no_percentile() -> None:
    assert parse_slo("ttft:500 tpot:50 e2el:5000").targets == (
        SloTarget("ttft", 0.5, None),
        SloTarget("tpot", 0.05, None),
        SloTarget("e2e", 5.0, None),
    )


def test_percentiles_may_have_a_fraction() -> None:
    assert parse_slo("e2e_p99.9=10s").targets == (SloTarget("e2e", 10.0, 99.9),)


def test_what_is_dumped_reads_back_exactly() -> None:
    slo = parse_slo("ttft_p99=123us,tpot_p50=33.3ms")
    assert Slo.model_validate(slo.model_dump(mode="json")) == slo


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft_p99", "'ttft_p99' is no SLO; write ttft_p99=1s, or ttft:500 in milliseconds"),
        ("ttft_p99=", "'ttft_p99=' is no SLO; write ttft_p99=1s, or ttft:500 in milliseconds"),
        ("ttft_p99=1", "'1' is no duration; write a number and a unit, such as 1s or 40ms"),
        ("ttft_p99=1h", "'1h' is no duration; write a number and a unit, such as 1s or 40ms"),
        ("ttft_p99=-1s", "'-1s' is no duration; write a number and a unit, such as 1s or 40ms"),
        ("ttft_p99=0s", "must be greater than 0"),
        ("ttft_p0=1s", "'ttft_p0' is no SLO; write METRIC_pPERCENTILE such as ttft_p99, or METRIC alone"),
        ("ttft_p100=1s", "'ttft_p100' is no SLO; write METRIC_pPERCENTILE such as ttft_p99, or METRIC alone"),
        ("itl_p99=1s", "unknown metric 'itl'; one of ttft, tpot, e2e"),
        ("ttft_p99=1s,ttft_p99=2s", "'ttft_p99' is given twice"),
        ("", "names no target; write null for no SLO"),
    ],
)
def test_a_wrong_slo_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_slo(text)
    assert [fault.message for fault in caught.value.faults] == [said]
