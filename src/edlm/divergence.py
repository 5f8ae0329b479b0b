"""How far two sets of texts are apart: divergence frontiers (Pillutla et al. 2021, "MAUVE") after quantisation.

Texts become vectors, vectors become cluster numbers, and the two histograms P and Q over clusters are compared along
the mixtures R = l P + (1 - l) Q, 0 < l < 1:

    curve                { (exp(-c KL(Q | R)), exp(-c KL(P | R))) },  c = 5
    area score           area under the curve, in (0, 1]; 1 if P = Q
    frontier integral    2 * integral over l of [ l KL(P | R) + (1 - l) KL(Q | R) ], in [0, 1]; 0 if P = Q

The frontier integral is that of Liu et al. 2021.

Values depend on the features, the number of clusters and the number of texts; compare only within one protocol.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edlm.errors import UserError
from edlm.extras import require_extra

SCALE = 5.0
NUM_MIXTURES = 999
SVD_SIZE = 64
"""Dimensions kept of the n-gram features."""
EXPLAINED = 0.9
"""Share of the variance that the principal components keep before clustering."""

Embed = Callable[[Sequence[str]], np.ndarray]
"""Texts to vectors (n, D)."""


@dataclass(frozen=True)
class Divergence:
    """How the two sets of texts compare. Standard errors are over texts, with the clusters held fixed."""

    area: float
    area_standard_error: float
    frontier_integral: float
    frontier_integral_standard_error: float
    num_clusters: int
    num_texts: tuple[int, int]
    features: str


def compare_texts(
    ours: Sequence[str], theirs: Sequence[str], *, embed: Embed | None = None, features: str = "", seed: int = 0,
    num_clusters: int | None = None,
) -> Divergence:  # fmt: skip
    """The divergence between two sets of texts; without `embed` the features are their character n-grams.

    By default there is one cluster per ten texts of the smaller set, as published: fewer texts give a coarser look and
    a higher score, so both sets should have the same size in every row of a table.
    """
    if min(len(ours), len(theirs)) < 2:
        raise UserError(f"comparing texts needs at least 2 on each side, got {len(ours)} and {len(theirs)}")
    if embed is None:
        embed, features = ngram_features, "character 1- to 4-grams, TF-IDF, SVD"
    num_clusters = num_clusters or max(2, min(len(ours), len(theirs)) // 10)
    labels = quantise(embed([*ours, *theirs]), num_clusters, seed=seed)
    p, q = (np.bincount(part, minlength=num_clusters) for part in np.split(labels, [len(ours)]))
    area, integral = scores(smoothed(p), smoothed(q))
    errors = resampled_errors(p, q, seed=seed)
    return Divergence(area, errors[0], integral, errors[1], num_clusters, (len(ours), len(theirs)), features)


def remembering(embed: Embed) -> Embed:
    """The same function, which embeds each text once: the held-out texts of a table are those of every row."""
    known: dict[str, np.ndarray] = {}

    def remembered(texts: Sequence[str]) -> np.ndarray:
        if new := [text for text in dict.fromkeys(texts) if text not in known]:
            known.update(zip(new, embed(new), strict=True))
        return np.stack([known[text] for text in texts])

    return remembered


def ngram_features(texts: Sequence[str]) -> np.ndarray:
    """Vectors (n, D) of character n-grams, n from 1 to 4: TF-IDF over all the texts, then truncated SVD."""
    require_extra("eval", "sklearn")
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    counts = TfidfVectorizer(analyzer="char", ngram_range=(1, 4), sublinear_tf=True, lowercase=False)
    try:
        matrix = counts.fit_transform(texts)
    except ValueError as error:
        raise UserError("the texts are all empty: there is nothing to compare") from error
    size = min(SVD_SIZE, min(matrix.shape) - 1)
    if size < 1:
        return np.asarray(matrix.toarray())
    with np.errstate(invalid="ignore"):  # it also computes shares of the variance, of which equal texts have none
        return np.asarray(TruncatedSVD(size, random_state=0).fit_transform(matrix))


def quantise(vectors: np.ndarray, num_clusters: int, *, seed: int) -> np.ndarray:
    """Cluster numbers (n,): vectors scaled to length one, then PCA, then k-means on both sets together."""
    require_extra("eval", "sklearn")
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    vectors = normalize(np.asarray(vectors, dtype=np.float64))
    if not 1 <= num_clusters <= len(vectors):
        raise UserError(f"num_clusters must be between 1 and the {len(vectors)} texts, got {num_clusters}")
    if np.ptp(vectors, axis=0).max() == 0:
        return np.zeros(len(vectors), dtype=np.int64)  # all alike: nothing to cluster, and PCA would divide by zero
    reduced = PCA(EXPLAINED, svd_solver="full").fit_transform(vectors)
    num_clusters = min(num_clusters, len(np.unique(reduced, axis=0)))
    return KMeans(num_clusters, n_init=5, random_state=seed).fit_predict(reduced)


def scores(P: np.ndarray, Q: np.ndarray) -> tuple[float, float]:
    """(area, frontier integral) of two histograms."""
    return area_under_frontier(P, Q), frontier_integral(P, Q)


def smoothed(counts: np.ndarray) -> np.ndarray:
    """Shares of the clusters with half a text added to each (Krichevsky-Trofimov), so that none is zero."""
    return (counts + 0.5) / (counts + 0.5).sum()


def frontier(P: np.ndarray, Q: np.ndarray, *, scale: float = SCALE, num_mixtures: int = NUM_MIXTURES) -> np.ndarray:
    """Points (num_mixtures + 2, 2) of the curve, from (0, 1) to (1, 0), first coordinate rising."""
    mixing = np.linspace(1, 0, num_mixtures + 2)[1:-1, None]
    R = mixing * P + (1 - mixing) * Q
    points = np.stack([np.exp(-scale * kl(Q, R)), np.exp(-scale * kl(P, R))], axis=1)
    return np.concatenate([[[0.0, 1.0]], points, [[1.0, 0.0]]])


def area_under_frontier(P: np.ndarray, Q: np.ndarray, *, scale: float = SCALE) -> float:
    """The MAUVE score of two histograms, by the trapezoid rule."""
    x, y = frontier(P, Q, scale=scale).T
    return float(np.trapezoid(y, x))


def frontier_integral(P: np.ndarray, Q: np.ndarray) -> float:
    """The frontier integral of two histograms. The integral over l has a closed form for each cluster:

    sum of (p + q) / 2 - p q (log p - log q) / (p - q), the summand being 0 where p = q
    """
    p, q = P[P != Q], Q[P != Q]
    has_both = (p > 0) & (q > 0)
    logs = np.log(np.where(has_both, p, 1.0)) - np.log(np.where(has_both, q, 1.0))
    return float(((p + q) / 2 - p * q * logs / (p - q)).sum())


def kl(P: np.ndarray, R: np.ndarray) -> np.ndarray:
    """KL(P | R) in nats over the last axis; 0 log 0 = 0."""
    terms = np.where(P > 0, P, 1.0)
    return (P * (np.log(terms) - np.log(np.where(P > 0, R, 1.0)))).sum(-1)


def resampled_errors(p: np.ndarray, q: np.ndarray, *, num_resamples: int = 200, seed: int = 0) -> tuple[float, float]:
    """Bootstrap standard errors of `scores` for two sets of counts: texts are drawn again from the smoothed histograms.

    Clusters stay as they are, so the error does not cover the choice of features and clusters. Drawing from the raw
    counts would give no error at all where a cluster is empty.
    """
    rng = np.random.default_rng(seed)
    draws = ([smoothed(rng.multinomial(c.sum(), smoothed(c))) for c in (p, q)] for _ in range(num_resamples))
    spread = np.std([scores(P, Q) for P, Q in draws], axis=0, ddof=1)
    return float(spread[0]), float(spread[1])
