"""Sums that merge over batches, and the mark for whoever measures time."""

from contextlib import contextmanager

import pytest
import torch

from movelist.core.metrics import Sums, span, span_hook

CPU = torch.device("cpu")


def test_sums_weigh_by_steps_not_by_batches():
    """Losses [1, 1, 1] and [5]: the mean is 2.0; the mean of the means would be 3.0."""
    sums = Sums(("loss", "steps"), CPU)
    for losses in ([1.0, 1.0, 1.0], [5.0]):
        sums.add({"loss": torch.tensor(losses).sum(), "steps": torch.tensor(float(len(losses)))})
    total = sums.read()
    assert total["loss"] / total["steps"] == 2.0


def test_sums_are_exact_where_float32_would_stall():
    sums = Sums(("count",), CPU)
    sums.add({"count": torch.tensor(2.0**24)})
    for _ in range(10):
        sums.add({"count": torch.tensor(1.0)})
    assert sums.read() == {"count": 2.0**24 + 10}
    assert sums.vector.dtype == torch.float64


def test_sums_keep_no_graph_and_ignore_names_they_do_not_know():
    sums = Sums(("loss",), CPU)
    sums.add({"loss": torch.tensor(1.0, requires_grad=True), "other": torch.tensor(9.0)})
    assert not sums.vector.requires_grad
    assert sums.read() == {"loss": 1.0}


def test_appended_numbers_are_read_along_in_order():
    sums = Sums(("loss",), CPU)
    sums.add({"loss": torch.tensor(3.0)})
    sums.append({"first_bad": torch.tensor(-1.0), "skipped": torch.tensor(2)})
    assert sums.read() == {"loss": 3.0, "first_bad": -1.0, "skipped": 2.0}


def test_a_missing_name_is_the_callers_mistake():
    with pytest.raises(KeyError, match="steps"):
        Sums(("loss", "steps"), CPU).add({"loss": torch.tensor(1.0)})


def recorder(seen):
    @contextmanager
    def hook(name):
        seen.append(f"enter {name}")
        try:
            yield
        finally:
            seen.append(f"leave {name}")

    return hook


def test_a_span_without_a_measurer_does_nothing():
    with span("forward") as entered:
        assert entered is None


def test_spans_reach_the_hook_inside_the_block_only():
    seen = []
    with span_hook(recorder(seen)), span("forward"), span("loss"):
        pass
    with span("backward"):
        pass
    assert seen == ["enter forward", "enter loss", "leave loss", "leave forward"]


def test_the_hook_before_comes_back_also_after_an_error():
    outer, inner = [], []
    with span_hook(recorder(outer)):
        with pytest.raises(ZeroDivisionError), span_hook(recorder(inner)), span("bad"):
            raise ZeroDivisionError
        with span("good"):
            pass
    assert inner == ["enter bad", "leave bad"]
    assert outer == ["enter good", "leave good"]
