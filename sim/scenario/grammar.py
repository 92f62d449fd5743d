"""Structured output: `engine.grammar` (compiling takes time) and `workload.grammar` (who asks for which)."""

from typing import Annotated

from pydantic import Field

from sim.scenario.popularity import PopularitySection
from sim.scenario.section import Section
from sim.scenario.times import RandomTime


class GrammarSection(Section):
    """A request with a grammar waits until the grammar is compiled; other requests pass it."""

    compile_s: Annotated[RandomTime, Field(description="time to compile a grammar, drawn once for each")]
    workers: Annotated[int, Field(ge=1, le=1024, description="grammars that a replica compiles at once")] = 1
    cache: Annotated[bool, Field(description="a replica keeps the grammars it has compiled")] = True


class GrammarsSection(PopularitySection):
    """Requests whose output must fit a grammar (a JSON schema, a regular expression)."""

    num_grammars: Annotated[int, Field(ge=1, le=10_000_000, description="different grammars")] = 1
