"""What `ray_internals` uses is in this Ray, and does what is said of it."""

from __future__ import annotations

import inspect
import logging
import os
import queue
import threading
from importlib import import_module

import pytest
import ray

from twinkle_ray import ray_internals


def test_the_label_of_worker_lines() -> None:
    assert ray_internals.actor_name_marker() == ":actor_name:"


def test_variables_are_set_and_unset_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINKLE_A", "before")
    monkeypatch.delenv("TWINKLE_B", raising=False)
    with ray_internals.environment({"TWINKLE_A": None, "TWINKLE_B": "now"}):
        assert (os.environ.get("TWINKLE_A"), os.environ["TWINKLE_B"]) == (None, "now")
    assert (os.environ["TWINKLE_A"], os.environ.get("TWINKLE_B")) == ("before", None)


@pytest.mark.parametrize(("kind", "variable"), [("GPU", "CUDA_VISIBLE_DEVICES"), ("CPU", None), ("abacus", None)])
def test_variables_of_devices(kind: str, variable: str | None) -> None:
    assert ray_internals.visibility_variable(kind) == variable


def test_the_loopback_switch_is_read_at_the_start_and_put_back() -> None:
    constants = import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    with ray_internals.on_loopback():
        assert constants.ENABLE_RAY_CLUSTER is False
    assert constants.ENABLE_RAY_CLUSTER is before
    readers = [import_module(f"ray._private.{name}") for name in ("node", "services", "worker")]
    assert any("ENABLE_RAY_CLUSTER" in inspect.getsource(module) for module in readers)


def test_the_line_of_the_token_comes_from_the_silenced_logger() -> None:
    name = "ray._private.authentication.authentication_token_setup"
    assert import_module(name).logger is logging.getLogger(name)
    level = logging.getLogger(name).level
    with ray_internals.quiet_token():
        assert logging.getLogger(name).level == logging.ERROR
    assert logging.getLogger(name).level == level


@pytest.mark.usefixtures("ray_cluster")
def test_free_resources_are_those_of_each_node() -> None:
    free, total = ray_internals.free_resources(), ray.available_resources()  # type: ignore[no-untyped-call]  # Ray's own gap
    assert set(free) == {node["NodeID"] for node in ray.nodes()}  # type: ignore[no-untyped-call]  # Ray's own gap
    assert sum(node.get("CPU", 0) for node in free.values()) == total["CPU"]


@pytest.mark.ray
def test_a_value_that_goes_out_of_scope_is_reported(ray_cluster: None) -> None:
    gone = threading.Event()
    ref = ray.put(1)
    assert ray_internals.when_out_of_scope(ref, gone.set)
    held = ray.put([ref])
    del ref
    assert not gone.wait(0.5)
    del held
    assert gone.wait(60)


@pytest.mark.ray
def test_who_asks_gets_a_value_or_the_error_in_its_place(ray_cluster: None) -> None:
    def divided(by: int) -> float:
        return 1.0 / by

    remote = ray.remote(divided).options(num_cpus=0)
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    ray_internals.when_answered(value := remote.remote(2), answers.put)
    assert answers.get(timeout=60) == 0.5
    ray_internals.when_answered(error := remote.remote(0), answers.put)
    assert isinstance(answers.get(timeout=60), ray.exceptions.RayTaskError)
    del value, error
