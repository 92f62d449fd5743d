"""Makes installed engines for a scenario, or says why there can be none."""

from __future__ import annotations

from scheduler import EngineCore, KVCacheConfig, SchedulerConfig
from scheduler.connector import KVConnector
from sim.cluster.clock import ProgressGuard
from sim.cluster.replica_spec import InstalledSpec
from sim.errors import InputError
from sim.installed.engine import InstalledEngine
from sim.installed.present import require
from sim.plugins import load_class
from sim.scenario import Scenario


def installed_spec(
    scenario: Scenario, config: SchedulerConfig, kv_cache: KVCacheConfig, *, allow_plugins: bool
) -> InstalledSpec | None:
    """How replicas get engines of the installed vLLM; None for a scenario that runs on the mirror.

    Imports vLLM and makes one scheduler at once, so that whatever vLLM refuses is told before the run. Raises
    `InputError`.
    """
    engine = scenario.resolved.engine
    if engine.scheduler != "vllm":
        return None
    found = require(scenario)
    try:
        from sim.installed import cpu

        cpu.prepare()
        from sim.installed import parts
    except Exception as error:
        message = f"vLLM {found} cannot be driven: {type(error).__name__}: {error}"
        raise InputError([scenario.fault("engine.scheduler", message)]) from error
    try:
        cls = _class(engine.scheduler_cls, allow_plugins=allow_plugins)
        if cls is not None:
            parts.check_class(cls, async_scheduling=config.async_scheduling)
    except ValueError as error:
        raise InputError([scenario.fault("engine.scheduler_cls", str(error))]) from error

    def scheduler(*, has_connector: bool) -> object:
        return parts.make_scheduler(config, kv_cache, cls=cls, has_connector=has_connector)

    def make(connector: KVConnector | None) -> EngineCore:
        made = scheduler(has_connector=connector is not None)
        return InstalledEngine(config, kv_cache, parts, made, connector)

    try:
        if scenario.engine.window_retention_tokens is not None and not parts.KNOWS_RETENTION:
            raise parts.UnknownSettingError("window_retention_tokens")
        scheduler(has_connector=scenario.cluster.external_cache is not None)
    except parts.UnknownSettingError as error:
        raise InputError([scenario.fault(f"engine.{error.setting}", str(error))]) from error
    except Exception as error:
        path = "engine.scheduler" if cls is None else "engine.scheduler_cls"
        message = f"vLLM {found} does not make this engine: {type(error).__name__}: {error}"
        raise InputError([scenario.fault(path, message)]) from error
    return InstalledSpec(make, InstalledGuard)


def _class(dotted: str | None, *, allow_plugins: bool) -> type | None:
    """The user's scheduler class. Those of vLLM itself need no leave."""
    if dotted is None:
        return None
    if not allow_plugins and not dotted.startswith("vllm."):
        raise ValueError(f"{dotted} is code of your own; allow it with --allow-plugins")
    return load_class(dotted, "schedule")


class InstalledGuard(ProgressGuard):
    """Watches an installed engine, which cannot be looked into."""

    def _why_nothing_moves(self, engine: EngineCore) -> str:
        kv = engine.kv_cache
        return (
            f"the installed engine schedules nothing; {engine.num_running} requests run and "
            f"{engine.num_waiting} wait with {kv.num_free_blocks} of {kv.num_blocks - 1} KV blocks free"
        )
