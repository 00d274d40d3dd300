"""Expressions like those of analysts, whose numbers must equal those of native CPython.

Most compute with positions and counts, which have 64 bits on x86-64 and 32 in the guest. `SETUP` is
the cell that defines their names, `GRID` and `SINGLE` are the expressions.
"""

from __future__ import annotations

from pathlib import Path

SETUP = """
import io, math, pickle, copy, statistics, warnings
from collections import Counter
import numpy as np, pandas as pd

warnings.simplefilter("ignore")
x = np.arange(70_000)[::-1] * 1.5
mask = x > 100
k = np.arange(70_000) % 7
rng = np.random.default_rng(7)
small = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
names = np.array(["ab", "abc", "a"] * 3)
days = np.datetime64("2020-01-01")
stamps = pd.date_range("2020-01-01", periods=5)
df = pd.DataFrame({"g": k[:70], "v": x[:70], "w": np.arange(70), "s": list("abcdefg") * 10})
long = pd.DataFrame({"g": k, "v": x})
text = pd.Series(["apple", "fig", "banana"])
"""

LIBRARIES = """
import scipy.sparse as sp, scipy.ndimage as ndi, scipy.signal as sig, scipy.stats as st
import scipy.spatial as spatial, scipy.optimize as opt, scipy.cluster.hierarchy as hier
import networkx as nx
from scipy.sparse import csgraph
from sklearn import cluster, datasets, ensemble, linear_model, metrics, model_selection, neighbors
from sklearn import preprocessing, tree, feature_extraction, decomposition, naive_bayes
import statsmodels.api as sm, statsmodels.formula.api as smf, statsmodels.tsa.api as tsa

line = np.arange(70_000.)[:, None]
points = np.array([[0.0, 0], [3, 4], [6, 9], [10, 1], [2, 13]])
y = np.array([0, 1, 1, 0, 1, 0, 1, 1])
p = np.array([0, 1, 0, 0, 1, 1, 1, 1])
sparse = sp.csr_matrix((np.arange(1, 70_001), (np.arange(70_000), np.arange(70_000) % 3)))
graph = nx.path_graph(60)
wave = np.sin(np.arange(70_000) / 50)
nn = neighbors.NearestNeighbors(n_neighbors=2).fit(line)
found = nn.kneighbors(line[-3:])[1]
"""

# Sources of positions or counts, as arrays of one dimension or more.
_SOURCES = """
np.argsort(x)
np.argsort(-x, kind='stable')
x.argsort()[::-1]
np.flatnonzero(mask)
np.nonzero(mask)[0]
np.where(mask)[0]
np.argwhere(mask)
np.searchsorted(x[::-1], x[:9])
np.digitize(x, x[::-10])
np.bincount(np.zeros(50_000, int))
np.bincount(k)
np.histogram(x, 3)[0]
np.unique(k, return_inverse=True)[1]
np.unique(x, return_index=True)[1]
np.unique(k, return_counts=True)[1]
np.lexsort((x, k))
np.sort(np.argpartition(x, 5)[:6])
np.argmax(x.reshape(7, -1), axis=1)
np.ravel_multi_index((k, k), (9000, 7000))
np.unravel_index(np.arange(60_000), (60_000, 3))[0]
np.triu_indices(300)[0]
np.char.str_len(names)
pd.factorize(x)[0]
pd.Index(x).get_indexer(x[-5:])
pd.cut(x, 5, labels=False)
long.groupby('g').indices[1]
"""

# Operations on them; `{}` is a source.
_OPERATIONS = """
{} * 60_000
{} ** 2
({} ** 2).sum()
np.mean({} ** 3)
np.square({}) + 1
{}.ravel() @ {}.ravel()
{}.ravel()[-1] * 10**9
2**31 + {}
np.cumsum({})[-1] * 10**6
pd.Series({}.ravel()) * 70_000
str({}.max() * 10**6)
"""


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def _listed(name: str) -> list[str]:
    return _lines((Path(__file__).parent / f"{name}.txt").read_text())


GRID = [
    operation.replace("{}", f"({source})")
    for source in _lines(_SOURCES)
    for operation in _lines(_OPERATIONS)
]
SINGLE = [*_listed("numpy"), *_listed("pandas")]
OTHERS = _listed("others")
DIFFERENT = set(_listed("different"))
"""Expressions that give something else in the guest, for the reasons in `docs/limitations.md`."""
