"""Random cases in the vocabulary of recorded runs: every setting, request key and event, freely mixed.

A case is a pure function of its release and number. It asks nothing that the engine's own front end refuses,
but much that nobody would set: tiny pools, budgets below a block, windows of one token.
"""

from __future__ import annotations

from random import Random
from typing import Any, Literal

Case = dict[str, Any]
Release = Literal["0.16.0", "0.33.0"]

FORMATS: dict[str, str] = {"0.16.0": "sched-oracle/1", "0.33.0": "sched-oracle/2"}

_PREFIX, _UNIQUE, _OUTPUT = 10_000_000, 100_000, 50_000_000
_GROUPS = (
    *("f", "s", "s", "c", "fs", "fs", "fs", "sf", "ss", "ff", "fc", "fss", "fsc", "fssc", "cs", "ffs"),
    *("fm", "fm", "fm", "ffm", "m", "fsm"),
)
"""Full, sliding, chunked-local and Mamba groups by their first letters."""
_STOP_TOKEN, _UNSEEN_STOP = 77_777, 88


def make_case(release: str, number: int) -> Case:
    """Case `number` of a release."""
    return _Generator(release, number).make()


class _Generator:
    def __init__(self, release: str, number: int) -> None:
        self._random = Random(f"{release} {number}")
        self._newer = release != "0.16.0"
        self._release = release
        self._number = number
        self._config: dict[str, Any] = {}

    def make(self) -> Case:
        """Settings first, then requests that fit them, then what happens to these."""
        self._settings()
        requests = self._requests()
        self._pool(requests)
        events = self._events(requests)
        return {
            "format": FORMATS[self._release],
            "vllm": self._release,
            "name": f"campaign-{self._number}",
            "tags": [],
            "config": self._config,
            "requests": requests,
            "events": events,
            "max_steps": 150 + max((event[0] for event in events), default=0),
        }

    # --- settings -----------------------------------------------------------------------------------------

    def _settings(self) -> None:
        pick, chance, config = self._random.choice, self._chance, self._config
        config["policy"] = "priority" if chance(0.4) else "fcfs"
        config["max_num_seqs"] = pick([1, 2, 2, 4, 4, 8, 8, 16, 32])
        budget = pick([8, 16, 33, 48, 64, 64, 100, 128, 256, 512])
        config["max_num_batched_tokens"] = max(budget, config["max_num_seqs"])
        config["max_model_len"] = pick([40, 97, 150, 150, 300, 4096, 4096])
        config["hash_block_size"] = pick([1, 2, 3, 4, 4, 5, 8, 8, 16, 16, 32])
        config["async_sched"] = chance(0.45)
        config["prefix_caching"] = chance(0.82)
        config["include_finished_set"] = chance(0.25)
        if chance(0.2):
            config["long_prefill_token_threshold"] = min(pick([4, 9, 16, 50]), config["max_model_len"])
        if chance(0.08):
            config["chunked_prefill"] = False
            config["max_model_len"] = pick([40, 97, 150])
            config["max_num_batched_tokens"] = max(32, config["max_model_len"]) + pick([0, 0, 1, 30])
        if chance(0.22):
            config["max_loras"] = pick([1, 2, 2, 3, 4])
        if chance(0.22):
            config["connector"] = True
            config["kv_load_failure_policy"] = pick(["recompute", "fail"])
        if chance(0.42):
            self._speculation()
        if chance(0.5 if self._newer or "connector" not in config else 0.15):
            config["groups"] = self._groups()
        if self._newer:
            self._newer_settings()
        if chance(0.1) and "spec" not in config:
            self._pipeline()

    def _speculation(self) -> None:
        pick, chance = self._random.choice, self._chance
        kinds = ["ngram", "draft_model", "eagle", "eagle"] + (["mtp_multi", "dflash"] if self._newer else [])
        k = pick([1, 2, 2, 3, 4, 5, 7])
        spec: dict[str, Any] = {"kind": pick(kinds), "k": k}
        if self._newer:
            if chance(0.6):
                spec["lookahead_hashes"] = chance(0.7)
            if chance(0.2):
                spec["parallel"] = True
            if self._config["async_sched"] and chance(0.2):
                first = pick([1, 2, 4])
                spec["by_batch"] = [[1, first, k], [first + 1, 64, pick(range(1, k + 1))]]
        self._config["spec"] = spec

    def _groups(self) -> list[dict[str, Any]]:
        size, pick = self._config["hash_block_size"], self._random.choice
        names = pick(_GROUPS)
        may_differ = len(names) > 1 and "c" not in names
        wider = pick([1, 1, 1, 2, 4]) if may_differ else 1
        widened = self._random.randrange(len(names))
        groups = []
        for place, name in enumerate(names):
            block_size = size * (wider if place == widened and wider > 1 else 1)
            groups.append(self._group(name, block_size))
        return groups

    def _group(self, name: str, block_size: int) -> dict[str, Any]:
        pick = self._random.choice
        extents = [
            1,
            2,
            3,
            block_size - 1,
            block_size,
            block_size + 1,
            2 * block_size,
            3 * block_size + 1,
            40,
        ]
        extent = max(1, pick(extents))
        if name == "f":
            return {"type": "full", "block_size": block_size}
        if name == "s":
            return {"type": "sliding", "block_size": block_size, "window": extent}
        if name == "c":
            return {"type": "chunked", "block_size": block_size, "chunk": extent}
        mode = pick(["none", "align", "align"] if self._newer else ["none", "align", "align", "all"])
        if self._newer and self._config["prefix_caching"]:
            mode = "align"
        if mode == "none":
            block_size = max(self._config["max_model_len"] // self._config["hash_block_size"], 1)
            block_size *= self._config["hash_block_size"]
        group = {"type": "mamba", "block_size": block_size, "mode": mode}
        if "spec" in self._config and self._chance(0.8):
            group["spec_blocks"] = self._config["spec"]["k"]
        return group

    def _newer_settings(self) -> None:
        pick, chance, config = self._random.choice, self._chance, self._config
        config["reserve_full_prompt"] = chance(0.75)
        if chance(0.2):
            config["watermark"] = pick([0.01, 0.03, 0.1, 0.25])
        if chance(0.15):
            config["max_num_scheduled_tokens"] = max(
                1, config["max_num_batched_tokens"] - pick([1, 2, 5, 30])
            )
        if chance(0.15):
            config["max_active"] = max(1, config["max_num_seqs"] - pick([0, 1, 2, 5]))
        if chance(0.12):
            config["long_prefill_adaptive"] = True
        if chance(0.15):
            config["prefill_interval"] = pick([2, 3, 4, 6])
        if chance(0.7):
            longest = [group["block_size"] for group in config.get("groups", ())] or [
                config["hash_block_size"]
            ]
            kinds = {group["type"] for group in config.get("groups", ())}
            reach = [max(longest), 3 * max(longest)] if kinds & {"sliding", "mamba"} else []
            config["retention"] = pick([0, 0, 0, 0, *reach])

    def _pipeline(self) -> None:
        stages = self._random.choice([2, 3, 4])
        if self._newer:
            self._config["pp"] = stages
            self._config["in_flight"] = stages + 1 if self._config["async_sched"] else stages
        else:
            self._config["in_flight"] = stages

    def _pool(self, requests: list[Case]) -> None:
        """Blocks for the largest request, and for a random part of the others."""
        config = self._config
        ahead = 2 * config["spec"]["k"] + 1 if "spec" in config else 0

        def blocks(request: Case) -> int:
            tokens = sum(length for _, length in request["prompt"]) + request["max_tokens"]
            tokens = min(tokens, config["max_model_len"]) + ahead
            sizes = config.get("groups") or [{"block_size": config["hash_block_size"]}]
            return sum(-(-tokens // g["block_size"]) + g.get("spec_blocks", 0) + 1 for g in sizes)

        demand = [blocks(request) for request in requests]
        share = self._random.choice([0.0, 0.05, 0.1, 0.2, 0.4, 1.2])
        extra = self._random.randint(0, 6) if self._chance(0.95) else -self._random.randint(1, 4)
        config["num_blocks"] = max(3, 1 + max(demand) + extra + int(share * sum(demand)))

    # --- requests -----------------------------------------------------------------------------------------

    def _requests(self) -> list[Case]:
        number = self._random.choice([2, 3, 5, 8, 12, 20, 30])
        self._longest_prompt = self._random.choice([12, 30, 60, 120, 300])
        self._longest_output = self._random.choice([4, 10, 25, 60])
        self._sharing = self._random.choice([0.2, 0.6, 0.9])
        self._features = {
            name: self._chance(share)
            for name, share in {
                "salt": 0.2, "skip": 0.2, "fsm": 0.2, "resumable": 0.3, "clients": 0.3,
                "stops": 0.4, "ties": 0.4, "min": 0.2,
            }.items()
        }  # fmt: skip
        requests: list[Case] = []
        for index in range(number):
            requests.append(self._request(index, requests))
        return requests

    def _request(self, index: int, others: list[Case]) -> Case:
        pick, chance, has, config = self._random.choice, self._chance, self._features, self._config
        request: Case = {
            "prompt": self._prompt(index, others),
            "out": _OUTPUT + 10_000 * index,
            "max_tokens": self._random.randint(1, self._longest_output),
        }
        if config["policy"] == "priority":
            request["prio"] = pick([-1, 0, 0, 1, 2])
        if has["ties"]:
            request["at"] = float(pick([0, 1, 2, 3, index]))
        if has["clients"]:
            request["client"] = pick([0, 0, 1, 2])
        if config.get("max_loras") and chance(0.7):
            request["lora"] = self._random.randint(1, config["max_loras"] + 3)
        if has["salt"] and chance(0.4):
            request["salt"] = pick("st")
        if has["skip"] and chance(0.4):
            request["skip_cache"] = True
        if has["fsm"] and chance(0.5):
            request["fsm"] = True
            if "spec" in config and chance(0.7):
                request["grammar_valid"] = [self._random.randint(0, 4) for _ in range(pick([1, 2, 3]))]
        elif has["resumable"] and chance(0.5):
            request["resumable"] = True
        if has["stops"] and chance(0.5):
            self._stops(request)
        if has["min"] and chance(0.5) and not request.get("resumable"):
            request["min_tokens"] = self._random.randint(0, request["max_tokens"])
        if "spec" in config:
            k = config["spec"]["k"]
            request["accept"] = [self._random.randint(0, k) for _ in range(pick([1, 2, 3, 5]))]
            if chance(0.4):
                request["drafts"] = [self._random.randint(0, k) for _ in range(pick([1, 2, 3]))]
        if config.get("connector") and chance(0.6):
            request["ext"] = self._transfer(request)
        return request

    def _stops(self, request: Case) -> None:
        pick, chance, last = self._random.choice, self._chance, request["max_tokens"]
        if chance(0.5):
            request["eos_at"] = sorted({self._random.randint(0, last) for _ in range(pick([1, 2, 3]))})
        if chance(0.4):
            request["stop_at"] = [self._random.randint(0, last), _STOP_TOKEN]
            request["stop_ids"] = pick([[_UNSEEN_STOP], [_STOP_TOKEN, _UNSEEN_STOP], [_STOP_TOKEN]])
        if chance(0.3):
            request["ignore_eos"] = True

    def _transfer(self, request: Case) -> Case:
        pick, chance = self._random.choice, self._chance
        length = sum(n for _, n in request["prompt"])
        script: Case = {"tokens": self._random.choice([length, length, self._random.randint(0, length + 3)])}
        if chance(0.55):
            script["async"] = True
            script["delay"] = self._random.randint(0, 5)
        if chance(0.3):
            script["defer"] = self._random.randint(1, 4)
        if chance(0.25):
            script["times"] = self._random.randint(0, 3)
        if chance(0.35):
            script["send"] = self._random.randint(0, 6)
        several = self._newer and len(self._config.get("groups", ())) > 1
        if chance(0.25) and not several:
            last = length // self._config["hash_block_size"]
            script["fail"] = sorted({self._random.randint(0, last) for _ in range(pick([1, 1, 2]))})
        return script

    def _prompt(self, index: int, others: list[Case]) -> list[list[int]]:
        """A shared beginning, perhaps a turn of another request with its answer, and text of its own."""
        chance, randint = self._chance, self._random.randint
        longest = max(1, min(self._longest_prompt, self._config["max_model_len"] - 2))
        length = randint(1, longest)
        if chance(0.25):
            length = self._whole_blocks(length, longest)
        ranges: list[list[int]] = []
        if others and chance(0.3 * self._sharing):
            other = self._random.choice(others)
            ranges = [list(part) for part in other["prompt"]]
            if chance(0.8):
                ranges.append([other["out"], randint(1, other["max_tokens"])])
        elif chance(self._sharing):
            for level in range(randint(1, 2)):
                shared = _PREFIX + 20_000 * self._random.choice([0, 0, 1]) + 40_000 * level
                ranges.append([shared, randint(1, max(1, longest // 2))])
        ranges = _cut(ranges, longest)
        rest = max(length, 1) - sum(n for _, n in ranges)
        if rest > 0:
            ranges.append([_UNIQUE + 10_000 * index, rest])
        return ranges or [[_UNIQUE + 10_000 * index, 1]]

    def _whole_blocks(self, length: int, longest: int) -> int:
        size = self._config["hash_block_size"]
        whole = max(size, length // size * size)
        return whole if whole <= longest else length

    # --- events -------------------------------------------------------------------------------------------

    def _events(self, requests: list[Case]) -> list[list[Any]]:
        pick, chance, randint = self._random.choice, self._chance, self._random.randint
        spread = pick([0, 3, 10, 40, 80])
        events: list[tuple[int, int, list[Any]]] = []

        def happen(t: int, *event: Any) -> None:
            events.append((t, len(events), [t, *event]))

        arrivals = sorted(randint(0, spread) for _ in requests)
        if chance(0.2):
            arrivals = [t // 8 * 8 for t in arrivals]
        aborts = pick([0.0, 0.0, 0.1, 0.3])
        for index, (request, t) in enumerate(zip(requests, arrivals, strict=True)):
            happen(t, "add", index)
            if request.get("fsm") and chance(0.95):
                happen(t + randint(0, 6), "grammar", index)
            if request.get("resumable"):
                self._session(index, t, happen)
            if chance(aborts):
                happen(t + randint(0, 30), pick(["abort", "abort", "abort_mid"]), [index])
        horizon = spread + pick([10, 40])
        for _ in range(randint(1, 4) if chance(0.2) else 0):
            happen(randint(0, horizon), "reset", int(chance(0.5)))
        for _ in range(randint(1, 2) if chance(0.1) else 0):
            ids = sorted({randint(0, len(requests) - 1) for _ in range(3)})
            happen(spread + randint(0, 20), pick(["abort", "abort_mid"]), ids)
        if self._newer and chance(0.15):
            for _ in range(randint(1, 3)):
                t = randint(0, horizon)
                happen(t, "pause", pick([1, 2]))
                happen(t + randint(1, 10), "pause", 0)
            happen(horizon + 10, "pause", 0)
        return [event for _, _, event in sorted(events)]

    def _session(self, index: int, start: int, happen: Any) -> None:
        t = start
        for turn in range(self._random.randint(0, 4)):
            t += self._random.choice([0, 1, 3, 10, 25])
            prompt = [[_UNIQUE + 10_000 * index + 2_000 * (turn + 1), self._random.randint(1, 20)]]
            if self._chance(0.15):
                prompt = [[_PREFIX, self._random.randint(1, 10)]]
            happen(t, "chunk", index, prompt, self._random.randint(1, 12), float(t))
        if self._chance(0.8):
            happen(t + self._random.choice([0, 2, 20]), "end", index)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share


def _cut(ranges: list[list[int]], longest: int) -> list[list[int]]:
    kept, room = [], longest
    for start, length in ranges:
        length = min(length, room)
        if length > 0:
            kept.append([start, length])
        room -= length
    return kept
