"""Numbers printed in the paper (Shen et al., ACL 2023), in percent unless noted otherwise."""

from __future__ import annotations

from typing import NamedTuple


class Scores(NamedTuple):
    precision: float | None
    recall: float | None
    f1: float


OURS = "DiffusionNER, as published"

# corpus → system → scores on test (tables 1 and 2).
RESULTS: dict[str, dict[str, Scores]] = {
    "ace04": {
        "Straková et al. 2019, tagging": Scores(None, None, 81.48),
        "Wang et al. 2020": Scores(86.08, 86.48, 86.28),
        "Straková et al. 2019, generation": Scores(None, None, 84.40),
        "Yan et al. 2021": Scores(87.27, 86.41, 86.84),
        "Tan et al. 2021": Scores(88.46, 86.10, 87.26),
        "Lu et al. 2022": Scores(None, None, 86.89),
        "Yu et al. 2020": Scores(87.30, 86.00, 86.70),
        "Li et al. 2020": Scores(85.05, 86.32, 85.98),
        "Shen et al. 2021": Scores(87.44, 87.38, 87.41),
        "Wan et al. 2022": Scores(86.70, 85.93, 86.31),
        "Lou et al. 2022": Scores(87.39, 88.40, 87.90),
        "Zhu and Li 2022": Scores(88.43, 87.53, 87.98),
        "Yuan et al. 2022": Scores(87.13, 87.68, 87.40),
        "Li et al. 2022": Scores(87.33, 87.71, 87.52),
        OURS: Scores(88.11, 88.66, 88.39),
    },
    "ace05": {
        "Straková et al. 2019, tagging": Scores(None, None, 80.82),
        "Ju et al. 2018": Scores(74.20, 70.30, 72.20),
        "Wang et al. 2020": Scores(83.95, 85.39, 84.66),
        "Straková et al. 2019, generation": Scores(None, None, 84.33),
        "Yan et al. 2021": Scores(83.16, 86.38, 84.74),
        "Tan et al. 2021": Scores(87.48, 86.63, 87.05),
        "Lu et al. 2022": Scores(None, None, 85.78),
        "Yu et al. 2020": Scores(85.20, 85.60, 85.40),
        "Li et al. 2020": Scores(87.16, 86.59, 86.88),
        "Shen et al. 2021": Scores(86.09, 87.27, 86.67),
        "Wan et al. 2022": Scores(84.37, 85.87, 85.11),
        "Lou et al. 2022": Scores(85.97, 87.87, 86.91),
        "Zhu and Li 2022": Scores(86.25, 88.07, 87.15),
        "Yuan et al. 2022": Scores(86.70, 86.94, 86.82),
        "Li et al. 2022": Scores(85.03, 88.62, 86.79),
        OURS: Scores(86.15, 87.72, 86.93),
    },
    "genia": {
        "Straková et al. 2019, tagging": Scores(None, None, 77.80),
        "Ju et al. 2018": Scores(78.50, 71.30, 74.70),
        "Wang et al. 2020": Scores(79.45, 78.94, 79.19),
        "Straková et al. 2019, generation": Scores(None, None, 78.31),
        "Yan et al. 2021": Scores(78.87, 79.60, 79.23),
        "Tan et al. 2021": Scores(82.31, 78.66, 80.44),
        "Yu et al. 2020": Scores(81.80, 79.30, 80.50),
        "Li et al. 2020": Scores(81.14, 76.82, 78.92),
        "Shen et al. 2021": Scores(80.19, 80.89, 80.54),
        "Wan et al. 2022": Scores(77.92, 80.74, 79.30),
        "Yuan et al. 2022": Scores(80.42, 82.06, 81.23),
        "Li et al. 2022": Scores(83.10, 79.76, 81.39),
        OURS: Scores(82.10, 80.97, 81.53),
    },
    "conll03": {
        "Lu et al. 2022": Scores(None, None, 92.99),
        "Shen et al. 2021": Scores(92.13, 93.73, 92.94),
        "Li et al. 2020 (rerun by the authors)": Scores(92.33, 94.61, 93.04),
        "Yan et al. 2021": Scores(92.56, 93.56, 93.05),
        "Li et al. 2022 (rerun by the authors)": Scores(92.71, 93.44, 93.07),
        OURS: Scores(92.99, 92.56, 92.78),
    },
    "ontonotes": {
        "Yan et al. 2019": Scores(None, None, 89.78),
        "Yan et al. 2021": Scores(89.62, 90.92, 90.27),
        "Li et al. 2020 (rerun by the authors)": Scores(90.14, 89.95, 90.02),
        "Li et al. 2022 (rerun by the authors)": Scores(90.03, 90.97, 90.50),
        OURS: Scores(90.31, 91.02, 90.66),
    },
    "msra": {
        "Yan et al. 2019": Scores(None, None, 92.74),
        "Shen et al. 2021": Scores(92.20, 90.72, 91.46),
        "Li et al. 2020 (rerun by the authors)": Scores(91.98, 93.29, 92.63),
        "Li et al. 2022 (rerun by the authors)": Scores(94.88, 95.06, 94.97),
        OURS: Scores(95.71, 94.11, 94.91),
    },
}


class Efficiency(NamedTuple):
    parameters: float  # millions
    f1: float
    sentences_per_second: float
    speed_up: float


# On ACE04 with a GeForce RTX 3090 (table 3).
EFFICIENCY = {
    "Lu et al. 2022 (autoregressive)": Efficiency(849, 86.89, 1.98, 1.00),
    "Yan et al. 2021 (autoregressive)": Efficiency(408, 86.84, 13.75, 6.94),
    "DiffusionNER, γ = 1": Efficiency(381, 88.40, 82.44, 41.64),
    "DiffusionNER, γ = 5": Efficiency(381, 88.53, 57.08, 28.83),
    "DiffusionNER, γ = 10": Efficiency(381, 88.57, 37.10, 18.74),
}

# part of the ablations → row → F1 on ACE04 and CoNLL03 (tables 4 to 6).
ABLATIONS: dict[str, dict[str, tuple[float, float]]] = {
    "encoder": {
        "RoBERTa-large": (88.99, 92.89),
        "BERT-large": (88.39, 92.78),
        "BERT-base": (86.93, 92.02),
    },
    "module": {
        "full decoder": (88.39, 92.78),
        "without self-attention": (87.94, 92.25),
        "without cross-attention": (87.22, 91.40),
        "without the span encoder": (87.09, 91.63),
    },
    "schedule": {
        "cosine, T = 1000": (88.39, 91.56),
        "cosine, T = 1500": (87.49, 92.04),
        "cosine, T = 2000": (88.33, 91.79),
        "linear, T = 1000": (88.38, 92.78),
        "linear, T = 1500": (87.83, 92.87),
        "linear, T = 2000": (88.17, 92.56),
    },
    "expansion": {
        "repetition, K = 60": (88.15, 92.66),
        "repetition, K = 120": (88.49, 92.54),
        "repetition, K = 150": (88.19, 92.71),
        "random, K = 60": (88.46, 92.78),
        "random, K = 120": (88.53, 92.79),
        "random, K = 150": (88.11, 92.60),
    },
}

# corpus → system → F1 on test of all entities, discontinuous ones included.
DISCONTINUOUS: dict[str, dict[str, float]] = {
    "cadec": {
        "Dai et al. 2020 (ELMo)": 69.0,
        "W2NER, Li et al. 2022 (BioBERT-base)": 73.2,
    },
}
