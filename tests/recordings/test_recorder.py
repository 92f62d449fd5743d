"""The recorder before a scheduler that only looks like vLLM's: serving goes on whatever becomes of it."""

from __future__ import annotations

import gzip
import logging
import sys
import time
import zlib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sim.recordings import ClassesKnown, Ended, load_recording
from tests.recordings import fake_vllm

SECRET = "tell-nobody"
FIRST_TOKEN = 9_870_000


class Status(Enum):
    WAITING = 0
    FINISHED_ABORTED = 7


class FakeScheduler:
    """Runs everything at once: the whole prompt first, then one token a step, three in all."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, block_size: int) -> None:
        self.requests: dict[str, Any] = {}
        self.connector = None
        pool = SimpleNamespace(get_num_free_blocks=lambda: 90)
        self.kv_cache_manager = SimpleNamespace(block_pool=pool)
        self.was_shut_down = False

    def get_request_counts(self) -> tuple[int, int]:
        return (len(self.requests), 0)

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request

    def finish_requests(self, request_ids: Any, status: Status) -> None:
        for name in [request_ids] if isinstance(request_ids, str) else list(request_ids):
            self.requests.pop(name, None)

    def schedule(self) -> Any:
        new = [request for request in self.requests.values() if not request.outputs]
        old = [request for request in self.requests.values() if request.outputs]
        scheduled = {request.request_id: 1 for request in old}
        scheduled |= {request.request_id: request.num_prompt_tokens for request in new}
        return SimpleNamespace(
            num_scheduled_tokens=scheduled,
            scheduled_new_reqs=[
                SimpleNamespace(req_id=each.request_id, num_computed_tokens=0, block_ids=([1, 2],))
                for each in new
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[each.request_id for each in old],
                num_computed_tokens=[each.num_prompt_tokens + len(each.outputs) - 1 for each in old],
                new_block_ids=[None] * len(old),
            ),
            scheduled_spec_decode_tokens={},
            preempted_req_ids=set(),
            finished_req_ids=set(),
        )

    def update_from_output(self, output: Any, model_output: Any) -> Any:
        outputs = []
        for name, tokens in zip(model_output.req_ids, model_output.sampled_token_ids, strict=True):
            request = self.requests[name]
            request.outputs += tokens
            ended = "length" if len(request.outputs) == 3 else None
            outputs.append(SimpleNamespace(request_id=name, new_token_ids=tokens, finish_reason=ended))
            if ended:
                del self.requests[name]
        return {0: SimpleNamespace(outputs=outputs)}

    def reset_prefix_cache(self, *args: Any) -> bool:
        raise RuntimeError("blocks are held")

    def shutdown(self) -> None:
        self.was_shut_down = True


def request(name: str, tokens: list[int]) -> Any:
    hashes = [
        hash(tuple(tokens[: end + 16])).to_bytes(8, "big", signed=True)
        for end in range(0, len(tokens) - 15, 16)
    ]
    return SimpleNamespace(
        request_id=f"{SECRET}-{name}",
        prompt_token_ids=tokens,
        outputs=[],
        arrival_time=time.time(),
        num_prompt_tokens=len(tokens),
        max_tokens=3,
        block_hashes=hashes,
        sampling_params=SimpleNamespace(min_tokens=0, structured_outputs=None),
        status=Status.WAITING,
        priority=0,
        client_index=0,
        lora_request=None,
        skip_reading_prefix_cache=False,
        resumable=False,
    )


def engine_arguments() -> dict[str, Any]:
    limits = SimpleNamespace(
        policy="fcfs", max_num_seqs=8, max_num_batched_tokens=512, long_prefill_token_threshold=0,
        enable_chunked_prefill=True,
    )  # fmt: skip
    model = SimpleNamespace(
        model="some/model", dtype="torch.bfloat16", max_model_len=4096, quantization=None,
        enforce_eager=False, is_encoder_decoder=False,
    )  # fmt: skip
    vllm_config = SimpleNamespace(
        scheduler_config=limits,
        model_config=model,
        cache_config=SimpleNamespace(enable_prefix_caching=True, cache_dtype="auto"),
        lora_config=None,
        speculative_config=None,
        kv_transfer_config=None,
        parallel_config=SimpleNamespace(
            tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1
        ),
    )
    spec = type("FullAttentionSpec", (), {"block_size": 16})()
    kv_cache = SimpleNamespace(num_blocks=100, kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])
    return {"vllm_config": vllm_config, "kv_cache_config": kv_cache, "block_size": 16}


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`dryserve.recording` beside a package that looks like vLLM 0.16.0."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if _of_vllm(name)}
    fake_vllm.install(tmp_path / "site")
    (tmp_path / "site" / "vllm" / "__init__.py").write_text('__version__ = "0.16.0+cpu"\n')
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("DRYSERVE_RECORDING_PATH", str(tmp_path / "a.jsonl.gz"))
    import dryserve.recording

    yield dryserve.recording
    for name in list(sys.modules):
        if _of_vllm(name):
            del sys.modules[name]
    sys.modules.update(hidden)


def _of_vllm(name: str) -> bool:
    return name.partition(".")[0] == "vllm" or name.startswith("dryserve.recording")


@pytest.fixture
def scheduler(recorder: ModuleType) -> Any:
    return recorded(recorder)(**engine_arguments())


def recorded(recorder: ModuleType) -> type:
    return type("RecordedFake", (recorder.Recorded, FakeScheduler), {})


def step(scheduler: Any, first: int = FIRST_TOKEN) -> Any:
    output = scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    tokens = [[first + len(scheduler.requests[name].outputs)] for name in names]
    model_output = SimpleNamespace(req_ids=names, sampled_token_ids=tokens, kv_connector_output=None)
    return scheduler.update_from_output(output, model_output)


def test_what_is_written_are_lengths_classes_and_counts(scheduler: Any, tmp_path: Path) -> None:
    shared = list(range(FIRST_TOKEN, FIRST_TOKEN + 40))
    scheduler.add_request(request("a", shared))
    scheduler.add_request(request("b", [*shared[:32], *range(FIRST_TOKEN + 500, FIRST_TOKEN + 520)]))
    step(scheduler)
    scheduler.finish_requests([f"{SECRET}-b", "unknown"], Status.FINISHED_ABORTED)
    for _ in range(2):
        step(scheduler)
    scheduler.shutdown()
    assert scheduler.was_shut_down

    recording = load_recording(tmp_path / "a.jsonl.gz")
    assert [each.prompt_classes for each in recording.requests] == [((0, 2),), ((0, 3),)]
    assert [step.scheduled for step in recording.steps] == [
        ((0, 40, 0, True), (1, 52, 0, True)),
        ((0, 1, 40, True),),
        ((0, 1, 41, True),),
    ]
    assert [call.request_ids for call in recording.calls if isinstance(call, Ended)] == [(1,)]
    assert [(each.num_outputs, each.finish_reason) for each in recording.requests] == [
        (3, "length"),
        (1, "abort"),
    ]
    assert recording.settings.tensor_parallel == 2
    assert (recording.scheduler, recording.patched) == ("FakeScheduler", True)
    assert recording.ending == "the engine was shut down"


def test_no_token_text_name_or_hash_is_ever_written(scheduler: Any, tmp_path: Path) -> None:
    requests = [
        request(f"{i}", list(range(FIRST_TOKEN + 90 * i, FIRST_TOKEN + 90 * i + 64))) for i in range(5)
    ]
    for each in requests:
        each.sampling_params.prompt = SECRET
        scheduler.add_request(each)
    for _ in range(3):
        step(scheduler)
        for each in requests:  # another block is hashed
            each.block_hashes.append(
                hash((each.request_id, len(each.block_hashes))).to_bytes(8, "big", signed=True)
            )
    scheduler.shutdown()
    text = gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes())
    assert any(isinstance(call, ClassesKnown) for call in load_recording(tmp_path / "a.jsonl.gz").calls)
    assert SECRET.encode() not in text
    assert str(FIRST_TOKEN)[:4].encode() not in text
    for each in requests:
        for key in each.block_hashes:
            number = int.from_bytes(key, "big", signed=True)
            assert key not in text
            assert key.hex().encode() not in text
            assert str(number).encode() not in text


def test_a_fault_of_the_recorder_ends_the_recording_and_nothing_else(
    scheduler: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.add_request(request("a", list(range(40))))
    step(scheduler)
    scheduler.get_request_counts = None
    scheduler._notes._counts = None  # what a release that was not tried with may lack
    assert len(step(scheduler)[0].outputs) == 1
    assert step(scheduler)[0].outputs[0].finish_reason == "length"
    lines = [each.message for each in caplog.records if "recording ended" in each.message]
    assert len(lines) == 1
    assert "serving goes on: TypeError" in lines[0]
    scheduler.shutdown()
    recording = wait_for_the_end(tmp_path / "a.jsonl.gz")
    assert recording.ending == "gap: TypeError in the recorder"
    assert len(recording.steps) == 1


def test_a_fault_of_the_writer_ends_the_recording_and_nothing_else(
    scheduler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler._notes._writer._file.close()  # as a full disk would
    scheduler.add_request(request("a", list(range(40))))
    deadline = time.monotonic() + 10
    while scheduler._notes is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert scheduler._notes is None
    assert len(step(scheduler)[0].outputs) == 1
    assert [each.message for each in caplog.records if "recording ended" in each.message]


def test_errors_of_the_scheduler_come_through_as_they_are(scheduler: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="blocks are held"):
        scheduler.reset_prefix_cache(True)
    with pytest.raises(TypeError):
        scheduler.schedule("too", "many")
    scheduler.shutdown()
    recording = wait_for_the_end(tmp_path / "a.jsonl.gz")
    assert [call.ok for call in recording.events] == ["error"]
    assert recording.ending == "scheduled: the scheduler raised TypeError"


def test_a_release_that_was_not_tried_is_served_unrecorded_unless_told(
    recorder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.24.0")
    caplog.set_level(logging.WARNING)
    plain = recorded(recorder)(**engine_arguments())
    plain.add_request(request("a", list(range(40))))
    assert len(step(plain)[0].outputs) == 1
    assert not (tmp_path / "a.jsonl.gz").exists()
    (line,) = [each.getMessage() for each in caplog.records]
    assert "NOT recording. This is vLLM 0.24.0; the recorder was tried with 0.16.0 and 0.33.0." in line

    monkeypatch.setenv("DRYSERVE_RECORDING_ANY_RELEASE", "1")
    scheduler = recorded(recorder)(**engine_arguments())
    scheduler.shutdown()
    assert load_recording(tmp_path / "a.jsonl.gz").release == "0.24.0"


def test_what_cannot_be_written_in_time_is_a_gap(
    recorder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYSERVE_RECORDING_QUEUE", "5")
    monkeypatch.setattr(sys.modules["dryserve.recording.writer"], "_WAKES_EVERY_S", 0.5)
    scheduler = recorded(recorder)(**engine_arguments())
    time.sleep(0.1)
    for i in range(20):
        scheduler.add_request(request(str(i), list(range(40))))
    scheduler.shutdown()
    recording = wait_for_the_end(tmp_path / "a.jsonl.gz")
    assert recording.ending == "gap: 5 records waited to be written"
    assert len(recording.requests) == 5


def test_a_recording_grows_no_larger_than_it_may(
    recorder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYSERVE_RECORDING_MAX_MB", "0.02")
    scheduler = recorded(recorder)(**engine_arguments())
    for i in range(4000):
        scheduler.add_request(request(str(i), list(range(40 + i % 7))))
        if i % 100 == 0:
            time.sleep(0.02)
    recording = wait_for_the_end(tmp_path / "a.jsonl.gz")
    assert recording.ending == "0.02 MB are written"
    assert (tmp_path / "a.jsonl.gz").stat().st_size < 100_000
    assert scheduler._notes is None
    assert len(scheduler.requests) == 4000


def test_a_file_that_is_there_is_not_overwritten(recorder: ModuleType, tmp_path: Path) -> None:
    engines = [recorded(recorder)(**engine_arguments()) for _ in range(2)]
    for engine in engines:
        engine.shutdown()
    assert len(list(tmp_path.glob("a*.jsonl.gz"))) == 2


def wait_for_the_end(path: Path) -> Any:
    """The recording, once its file is whole."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        stream = zlib.decompressobj(31)
        stream.decompress(path.read_bytes())
        if stream.eof:
            break
        time.sleep(0.02)
    return load_recording(path)
