"""Declarations of the tables: the runs that each needs, and what to measure on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from diffusionner.errors import SettingsError, nearest
from reproduce.corpora import (
    FLAT,
    GAPPED,
    MAIN_METHOD,
    METHODS,
    NESTED,
    SEQUENTIAL,
    learning_rates,
)

Kind = Literal["score", "speed", "trajectory"]


@dataclass(frozen=True)
class Point:
    """A measurement of a trained model, with inference settings that differ from its own."""

    kind: Kind
    split: Literal["dev", "test"] = "dev"
    options: tuple[tuple[str, Any], ...] = ()
    every_seed: bool = True  # False: the first seed is enough, as for speed

    @property
    def name(self) -> str:
        """Key in a record."""
        return " ".join([self.kind, self.split, *(f"{k}={v}" for k, v in self.options)])


def point(kind: Kind, split: Literal["dev", "test"] = "dev", **options: Any) -> Point:
    return Point(kind, split, tuple(sorted(options.items())), kind == "score")


@dataclass(frozen=True)
class Variant:
    """Row of an ablation: changes to the preset's settings, or another encoder."""

    title: str = "default"
    changes: tuple[tuple[str, Any], ...] = ()
    encoder: str | None = None


@dataclass(frozen=True)
class Need:
    """Every combination of corpus, method and variant, with the points to measure on each run.

    With a shape nothing is trained: the speed of random weights of that size is measured.
    """

    corpora: tuple[str, ...]
    methods: tuple[str, ...] = (MAIN_METHOD,)
    variants: tuple[Variant, ...] = (Variant(),)
    points: tuple[Point, ...] = ()
    shape: str | None = None


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    needs: tuple[Need, ...]

    @property
    def corpora(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for need in self.needs for name in need.corpora))


SHORT_EPOCHS = 3  # for tables with many runs; a preset is then within a point of its best F1


def short(*changes: tuple[str, Any], title: str, encoder: str | None = None) -> Variant:
    return Variant(title, (("training.epochs", SHORT_EPOCHS), *changes), encoder)


# Speed depends on the network and on how many entities it finds, not on how long it was trained. It
# is measured on short runs, so that the weights of the long ones need not be kept.
TIMED = short(title="timed")
ALL = tuple(METHODS)
STUDIED = ("genia", "conll03")  # one nested, one flat; the paper has ACE04 and CoNLL03
TUNED = ("genia", "litbank", "conll03")
STARTS = ("noise", "candidates")
GAMMAS = (1, 2, 3, 5, 10)
TABLE_GAMMAS = (1, 5, 10)
ALONE = 0  # steps: the initializer's candidates as it scores them
ALONE_TITLE = "initializer alone"
SPANS = (10, 30, 60)
EVALUATION_SPANS = (5, 10, 20, 30, 60, 100, 150)
CURVE_GAMMA = 5  # the paper's
NOISE_SEEDS = 10
SHAPE = "bert-large"
SHAPE_SPANS = 60
SHAPE_GAMMAS = (ALONE, *TABLE_GAMMAS)
# The paper's inference; the presets start from candidates.
PAPER_START: dict[str, Any] = {"start": "noise", "spans": 60}

DEV, TEST = point("score"), point("score", "test")
SPEED = point("speed")
NOISY = point("score", steps=CURVE_GAMMA, **PAPER_START)
ALONE_DEV = point("score", steps=ALONE)


def shape_point(steps: int | None) -> Point:
    """Return the speed of a shape; steps=None for a rival, which has neither steps nor spans."""
    return SPEED if steps is None else point("speed", steps=steps, spans=SHAPE_SPANS)


GAMMA_POINTS = tuple(
    point(kind, steps=gamma, **start)
    for start, gammas in ((dict[str, Any](), (ALONE, *TABLE_GAMMAS)), (PAPER_START, TABLE_GAMMAS))
    for gamma in gammas
    for kind in ("score", "speed")
)
# Inference of the trained DiffusionNER beside the preset's, γ = 1 from candidates.
OTHER_STEPS = {f"γ = {CURVE_GAMMA}": CURVE_GAMMA, ALONE_TITLE: ALONE}
OTHER_STEP_POINTS = tuple(
    point("score", split, steps=steps)
    for steps in OTHER_STEPS.values()
    for split in ("dev", "test")
)
# Not an inference setting: whether kernels are launched as graphs or one by one.
CUDA_GRAPHS = "cuda_graphs"
UNRECORDED_SPEED = Point("speed", options=((CUDA_GRAPHS, False),), every_seed=False)
UNRECORDED_POINTS = tuple(
    point("speed", **{"steps": CURVE_GAMMA, CUDA_GRAPHS: False, **start})
    for start in (PAPER_START, dict[str, Any]())
)


def start_gammas(start: str) -> tuple[int, ...]:
    """Return the numbers of steps of a start; noise needs at least one."""
    return GAMMAS if start == "noise" else (ALONE, *GAMMAS)


# Speed hardly depends on the start: it is only measured from noise.
STEP_POINTS = tuple(
    point(kind, steps=gamma, spans=spans, start=start)
    for start in STARTS
    for spans in SPANS
    for gamma in start_gammas(start)
    for kind in (("score", "speed") if start == "noise" else ("score",))
)
SPAN_POINTS = tuple(
    point("score", steps=CURVE_GAMMA, spans=spans, start=start)
    for start in STARTS
    for spans in EVALUATION_SPANS
)
# Title and inference settings: how much F1 depends on the noise seed.
SPREADS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("noise, γ = 1, K = 60", {"start": "noise", "steps": 1, "spans": 60}),
    ("noise, γ = 5, K = 60", {"start": "noise", "steps": 5, "spans": 60}),
    ("noise, γ = 5, K = 10", {"start": "noise", "steps": 5, "spans": 10}),
    ("candidates, γ = 1", {"start": "candidates", "steps": 1}),
)
SPREAD_POINTS = tuple(
    point("score", **options, seed=seed) for _, options in SPREADS for seed in range(NOISE_SEEDS)
)

# Written for this figure, so that it carries no licence of a corpus.
SENTENCE = (
    "Activated human T lymphocytes express the interleukin-2 receptor alpha chain gene only "
    "when NF-kappa B binds to its promoter."
)
TRAJECTORY = point("trajectory", steps=5, spans=16, seed=0)

ENCODER_VARIANTS = (
    short(title="preset's encoder"),
    short(title="minilm-l6", encoder="minilm-l6"),
)
MODULE_VARIANTS = (
    short(title="full decoder"),
    short(("decoder.self_attention", False), title="without self-attention"),
    short(("decoder.cross_attention", False), title="without cross-attention"),
    short(("decoder.layers", 0), title="without the span encoder"),
    short(("decoder.offset_window", 0), title="pointers without offset window"),
    short(("decoder.initializer", "spans"), title="initializer without types"),
    short(
        ("decoder.initializer", "none"),
        ("inference.start", "noise"),
        title="without an initializer",
    ),
)
SCHEDULE_VARIANTS = tuple(
    short(
        ("diffusion.schedule", schedule),
        ("diffusion.timesteps", timesteps),
        title=f"{schedule}, T = {timesteps}",
    )
    for schedule in ("cosine", "linear")
    for timesteps in (1000, 1500, 2000)
)
EXPANSION_VARIANTS = tuple(
    short(
        ("diffusion.expansion", expansion),
        ("diffusion.spans", spans),
        title=f"{expansion}, K = {spans}",
    )
    for expansion in ("repetition", "random")
    for spans in (60, 120, 150)
)
# Encoder learning rates, the same choice for every method.
RATES = (5e-5, 1e-4, 2e-4)
RATE_VARIANTS = tuple(
    short(*learning_rates(encoder), title=f"{encoder:g}, {5 * encoder:g}") for encoder in RATES
)
# Compared over all epochs where short runs prefer twice the preset's rates.
WHOLE_RATE_VARIANTS = tuple(
    Variant(f"{encoder:g}, {5 * encoder:g}", tuple(learning_rates(encoder)))
    for encoder in RATES[1:]
)
WHOLE_TUNED = {"litbank": ("crf", "biaffine"), "conll03": ("crf", "biaffine", "autoregressive")}
# What denoising adds is judged on these corpora, with a stronger recipe than the presets': beside
# the same weights without it, and beside a span classifier with the same recipe.
BENEFIT_CORPORA = ("genia", "litbank", "gum", "conll03")
RECIPE = Variant(
    "passages",
    (
        ("encoder.passage_words", 160),
        ("training.epochs", 6),
        ("training.encoder_learning_rate", 2e-4),
        ("training.learning_rate", 1e-3),
        ("training.layer_decay", 0.9),
        ("training.subword_masking", 0.15),
        ("training.consistency", 1.0),
    ),
)
# Not an inference setting: the library's fitted belief network is added to the trained model.
BELIEFS = "beliefs"
BELIEF_POINTS = tuple(point("score", split, **{BELIEFS: True}) for split in ("dev", "test"))
CLASSIFIER = "biaffine"
CONTIGUOUS = Variant("without discontinuous entities", (("decoder.discontinuous", False),))
ABLATIONS = {
    "encoder": ENCODER_VARIANTS,
    "module": MODULE_VARIANTS,
    "schedule": SCHEDULE_VARIANTS,
    "expansion": EXPANSION_VARIANTS,
}


def ablation_points(variant: Variant) -> tuple[Point, ...]:
    """Return the points of an ablation; only an initializer with types works alone."""
    typed = dict(variant.changes).get("decoder.initializer", "types") == "types"
    return (DEV, NOISY, ALONE_DEV) if typed else (DEV, NOISY)


_RIVALS = tuple(name for name in METHODS if name != MAIN_METHOD)


def _scored_and_timed(points: tuple[Point, ...], *methods: str) -> tuple[Need, Need]:
    """Return the needs for scores of full runs and speeds of short ones."""
    timed = tuple(one for one in points if one.kind == "speed")
    scored = tuple(one for one in points if one not in timed)
    return (
        Need(STUDIED, methods, points=scored),
        Need(STUDIED, methods, variants=(TIMED,), points=timed),
    )


def _results(corpora: tuple[str, ...]) -> tuple[Need, Need]:
    return (
        Need(corpora, ALL, points=(DEV, TEST)),
        Need(corpora, points=OTHER_STEP_POINTS),
    )


# Shared by several tables: all methods, and the main one for several γ.
_EFFICIENCY = (
    *_scored_and_timed((DEV, SPEED), *_RIVALS),
    *_scored_and_timed(GAMMA_POINTS, MAIN_METHOD),
)
TABLES = {
    table.name: table
    for table in (
        Table("nested", "Nested corpora", _results(tuple(NESTED))),
        Table("flat", "Flat corpora", _results(tuple(FLAT))),
        Table(
            "efficiency",
            "Inference efficiency",
            (
                *_EFFICIENCY,
                Need(STUDIED, (SEQUENTIAL,), (TIMED,), (UNRECORDED_SPEED,)),
                Need(STUDIED, variants=(TIMED,), points=UNRECORDED_POINTS),
                Need(("genia",), _RIVALS, points=(SPEED,), shape=SHAPE),
                Need(("genia",), points=tuple(map(shape_point, SHAPE_GAMMAS)), shape=SHAPE),
            ),
        ),
        Table("steps", "Denoising steps", _scored_and_timed(STEP_POINTS, MAIN_METHOD)),
        Table("spans", "Number of noisy spans", (Need(STUDIED, points=SPAN_POINTS),)),
        Table(
            "ablations",
            "Ablations",
            tuple(
                Need(STUDIED, variants=(row,), points=ablation_points(row))
                for rows in ABLATIONS.values()
                for row in rows
            ),
        ),
        Table(
            "tuning",
            "Learning rates",
            (
                Need(TUNED, ALL, RATE_VARIANTS, (DEV,)),
                *(
                    Need((corpus,), methods, WHOLE_RATE_VARIANTS, (DEV,))
                    for corpus, methods in WHOLE_TUNED.items()
                ),
            ),
        ),
        Table(
            "benefit",
            "Benefit of denoising",
            (
                Need(
                    BENEFIT_CORPORA,
                    variants=(RECIPE,),
                    points=(DEV, TEST, *OTHER_STEP_POINTS, NOISY, *BELIEF_POINTS),
                ),
                Need(BENEFIT_CORPORA, (CLASSIFIER,), (RECIPE,), (DEV, TEST)),
            ),
        ),
        Table(
            "discontinuous",
            "Discontinuous entities",
            (Need(tuple(GAPPED), variants=(Variant(), CONTIGUOUS), points=(DEV, TEST)),),
        ),
        Table("convergence", "Convergence", (Need(STUDIED, ALL),)),
        Table(
            "limitations",
            "Limitations",
            (Need(STUDIED, points=SPREAD_POINTS), Need(STUDIED, ALL)),
        ),
        Table("figures", "Figures", (Need(("genia",), points=(TRAJECTORY,)), *_EFFICIENCY)),
    )
}


def find(names: Iterable[str]) -> list[Table]:
    """Return tables by name; `all`, or no name, returns every table."""
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name != "all" and name not in TABLES:
            raise SettingsError(f"there is no table '{name}'; {nearest(name, [*TABLES, 'all'])}")
    if not chosen or "all" in chosen:
        return list(TABLES.values())
    return [TABLES[name] for name in chosen]


@dataclass(frozen=True)
class RunRequest:
    """A run that a table needs, before presets, files and encoders are resolved."""

    corpus: str
    method: str
    variant: Variant
    seed: int
    shape: str | None

    @property
    def name(self) -> str:
        """CORPUS/METHOD/VARIANT/SEED, which `--only` matches."""
        parts = [self.variant.encoder] if self.variant.encoder else []
        parts += [f"{key.rpartition('.')[2]}={value}" for key, value in self.variant.changes]
        variant = self.shape or "+".join(parts) or "default"
        return f"{self.corpus}/{self.method}/{variant}/{self.seed}"


def requested_runs(
    tables: Iterable[Table], seeds: int
) -> Iterator[tuple[RunRequest, tuple[Point, ...]]]:
    """Yield every run with its points; the first seed of all runs before the second."""
    needs = [need for table in tables for need in table.needs]
    for seed in range(seeds):
        for need in needs:
            if seed and need.points and not any(one.every_seed for one in need.points):
                continue
            points = tuple(one for one in need.points if one.every_seed or seed == 0)
            for corpus in need.corpora:
                for method in need.methods:
                    for variant in need.variants:
                        yield RunRequest(corpus, method, variant, seed, need.shape), points
