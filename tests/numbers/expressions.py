"""Expressions as analysts write them, whose numbers have to be those of the machine itself.

Most compute with positions and counts, which have 64 bits on x86-64 and 32 in the guest. `SETUP`
is the cell that defines their names, `GRID` and `SINGLE` are the expressions.
"""

from __future__ import annotations

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

# What gives positions or counts, as arrays of one dimension or more.
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

# What is done with them; `{}` is a source.
_OPERATIONS = """
({}) * 60_000
({}) ** 2
(({}) ** 2).sum()
np.mean(({}) ** 3)
np.square({}) + 1
({}).ravel() @ ({}).ravel()
({}).ravel()[-1] * 10**9
2**31 + ({})
np.cumsum({})[-1] * 10**6
pd.Series(({}).ravel()) * 70_000
f'{{({}).max() * 10**6}}'
"""

_NUMPY = """
np.bincount(np.zeros(50000, int))**2
np.histogram(x, 4)[0] * 100000
np.argmax(x[::-1]) * 10**6
np.argmin(x) * 10**6
np.argmax(x[::-1]) ** 3
np.power(np.argmax(x[::-1]), 3)
np.power(np.argsort(x), 3)
np.float64(np.argmax(x[::-1])) ** 3
2 ** np.bincount([1] * 40)
2 ** np.searchsorted(np.arange(50), 40)
10 ** np.argmax([0] * 12 + [1])
1 << np.flatnonzero(np.arange(40) > 30)
np.left_shift(1, np.arange(40)[np.argsort(np.arange(40))])
np.left_shift(np.flatnonzero(mask), 20)
np.flatnonzero(mask) << 20
np.argsort(x) @ np.argsort(x)
np.dot(np.argsort(x), np.argsort(x))
np.inner(np.argsort(x), np.argsort(x))
np.vdot(np.argsort(x), np.argsort(x))
np.outer(np.argsort(x)[:3], np.argsort(x)[:3])
np.multiply.outer(np.argsort(x)[:3], np.argsort(x)[:3])
np.tensordot(np.argsort(x), np.argsort(x), 1)
np.einsum('i,i', np.argsort(x), np.argsort(x))
np.einsum('i,i->i', np.argsort(x), np.argsort(x))
np.einsum('i,j->ij', np.argsort(x)[:3], np.argsort(x)[:3])
np.kron(np.argsort(x)[:2], np.argsort(x)[:2])
np.convolve(np.argsort(x)[:9], np.argsort(x)[:3])
np.correlate(np.argsort(x)[:9], np.argsort(x)[:3], 'full')
np.cross(np.argsort(x)[:3], np.argsort(x)[3:6])
np.trace(np.argsort(x).reshape(7, -1))
np.matmul(np.argsort(x).reshape(7, -1), np.argsort(x).reshape(7, -1).T)
np.linalg.matrix_power(np.argsort(x)[:4].reshape(2, 2), 3)
np.linalg.norm(np.argsort(x))
np.linalg.multi_dot([np.argsort(x)[:4].reshape(2, 2)] * 3)
np.cumsum(np.argsort(x))[-1]
np.cumsum(np.argsort(x) ** 2)[-1]
np.cumprod(np.argsort(-small) + 1)
np.cumprod(np.bincount([0, 0, 0, 1, 1, 1] * 1000))
np.prod(np.bincount(k))
np.prod(np.histogram(x, 4)[0])
np.nancumsum(np.argsort(x))[-1]
np.nansum(np.argsort(x))
np.nanprod(np.bincount(k))
np.nanmean(np.argsort(x) * 70000)
np.add.reduce(np.argsort(x))
np.add.accumulate(np.argsort(x))[-1]
np.multiply.accumulate(np.bincount(k))
np.multiply.reduce(np.bincount(k))
np.add.reduceat(np.argsort(x), [0, 5, 9])
np.maximum.reduce(np.argsort(x)) * 10**6
np.maximum.accumulate(np.argsort(x))[-1] * 10**6
np.sum(np.argsort(x), dtype=np.intp)
np.cumsum(np.argsort(x), dtype=np.intp)[-1]
np.add(np.argsort(x), 2**31, dtype=np.intp)[:3]
np.diff(np.argsort(x) * 70000)[:3]
np.diff(np.flatnonzero(mask))[:3] * 10**10
np.ediff1d(np.argsort(x))[:3] * 10**10
np.gradient(np.argsort(x) * 70000)[:3]
np.ptp(np.argsort(x)) * 10**6
np.ptp(np.argsort(x) * 10**6)
np.mean(np.argsort(x)**2)
np.var(np.argsort(x))
np.std(np.argsort(x) * 70000)
np.median(np.argsort(x)) * 10**6
np.percentile(np.argsort(x) * 70000, 75)
np.quantile(np.argsort(x) ** 2, [0.1, 0.9])
np.average(np.argsort(x) ** 2)
np.average(np.argsort(x), weights=np.argsort(x))
np.cov(np.argsort(x), np.argsort(x) ** 2)
np.corrcoef(np.argsort(x), np.argsort(x) ** 2)[0, 1]
np.histogram(np.argsort(x) ** 2, 3)
np.linspace(0, np.argmax(x[::-1]) * 100000, 3)
np.arange(np.argmax(x[::-1]) * 100000, np.argmax(x[::-1]) * 100000 + 3)
np.full(3, np.argmax(x[::-1]) * 10**6)
np.full(3, np.argmax(x[::-1])) * 10**6
np.full_like(np.argsort(small), 3 * 10**9)
np.full_like(np.argsort(small), 7) * 10**9
np.zeros_like(np.argsort(small)) + 3 * 10**9
np.ones_like(np.argsort(small)) * 3 * 10**9
np.empty_like(np.argsort(small), dtype=int).dtype
np.where(mask, np.argsort(x), 3 * 10**9)[-3:]
np.where(mask, np.argsort(x), -1)[:3] * 10**10
np.where(mask, np.argsort(x) * 10**6, 0)[:3]
np.select([mask], [np.argsort(x)], 10**10)[-3:]
np.choose([0, 1], [np.argsort(small)[:2], 10**10])
np.piecewise(np.argsort(x), [mask], [lambda v: v * 10**6, 0])[:3]
np.clip(np.argsort(x) * 10**6, 0, 10**10)[-3:]
np.clip(np.argsort(x), 0, 10**10)[:3] * 10**6
np.maximum(np.argsort(x), 10**10)[:2]
np.minimum(np.argsort(x), 10**10)[:2] * 10**7
np.concatenate([np.argsort(x)[:2], np.argsort(x)[:2]]) * 10**6
np.concatenate([np.argsort(x)[:2], [10**10]])
np.append(np.argsort(x)[:2], 10**10)
np.insert(np.argsort(x)[:2], 0, 5) * 10**6
np.insert(np.argsort(x)[:2], 0, 10**10)
np.hstack([np.argsort(small), np.bincount(k)]) ** 9
np.stack([np.argsort(small), np.argsort(-small)]) * 10**10
np.column_stack([np.argsort(x), np.argsort(x)])[:3] * 70000
np.r_[np.argsort(small), 10**10]
np.c_[np.argsort(small), np.argsort(small)] * 10**10
np.vstack([np.argsort(x), x]).max()
np.tile(np.argsort(small), 2) * 10**10
np.repeat(np.argsort(small), np.argsort(small)) * 10**10
np.roll(np.argsort(small), 1) * 10**10
np.flip(np.argsort(small)) * 10**10
np.take(np.argsort(x), [0, 1]) * 70000
np.delete(np.argsort(small), 0) * 10**10
np.sort(np.argsort(x))[-3:] * 10**6
np.union1d(np.argsort(small), [10**10])
np.intersect1d(np.argsort(x), [5, 6]) * 10**10
np.setdiff1d(np.argsort(x), [5, 6])[-2:] * 10**6
np.unique(np.argsort(x))[-2:] * 10**6
np.isin(np.argsort(x) * 10**6, [10**6, 69999 * 10**6]).sum()
np.argsort(x) == 69999
(np.argsort(x) == 3 * 10**9).any()
(np.argsort(x) < 3 * 10**9).all()
np.array_equal(np.argsort(x), np.arange(70000)[::-1])
np.allclose(np.argsort(x) ** 2, np.arange(70000)[::-1] ** 2)
np.argsort(x) - 2**31
-(np.argsort(x) * 70000)
~np.argsort(x)[:3] * 10**6
abs(np.argsort(x) * -70000)[:3]
np.negative(np.argsort(x))[:3] * 10**6
np.absolute(np.argsort(x) - 70000)[-3:] * 10**6
np.sign(np.argsort(x) - 35000) * 10**10
np.argsort(x) // 3 * 70000
np.argsort(x) % 7 * 10**10
divmod(np.argsort(x) * 70000, 10**9)[0][:3]
np.floor_divide(np.argsort(x) * 70000, 7)[:3]
np.remainder(np.argsort(x) * 70000, 10**6 + 3)[:3]
np.fmod(np.argsort(x) * 70000, 10**6 + 3)[:3]
np.gcd(np.argsort(x)[:3] * 10**6, 10**9)
np.lcm(np.argsort(x)[:3], 10**9 + 7)
np.bitwise_or(np.argsort(x), 2**40)[:3]
np.bitwise_and(np.argsort(x) * 70000, 2**40 - 1)[:3]
np.argsort(x)[:3] | 2**35
np.argsort(x)[:3] ^ 2**35
np.argsort(x)[:3] / 7 * 10**12
np.true_divide(np.argsort(x) ** 2, 3)[:3]
np.sqrt(np.argsort(x) ** 2)[:3]
np.hypot(np.argsort(x), np.argsort(x))[:3]
np.log(np.argsort(x) ** 2)[:3]
np.exp(np.argsort(small))
np.float_power(np.argsort(x), 3)[:3]
np.round(np.argsort(x) * 70000.4)[:3]
np.interp(np.argsort(x)[:3] * 70000, [0, 5 * 10**9], [0, 1])
np.polyval([1, 0, 0], np.argsort(x)[:3])
np.polyfit(np.argsort(small), np.argsort(small) ** 2, 1)
np.vander(np.argsort(x)[:3], 4)
np.apply_along_axis(lambda v: v * 70000, 0, np.argsort(x))[:3]
np.vectorize(lambda v: v * 70000)(np.argsort(x)[:3])
np.frompyfunc(lambda v: v * 70000, 1, 1)(np.argsort(x)[:3])
np.fromiter((v * 70000 for v in np.argsort(x)[:3]), dtype=int)
np.array([i * 70000 for i in np.argsort(x)[:3]])
np.array(list(np.argsort(x)[:3])) * 70000
np.array(np.argsort(x)) [:3] * 70000
np.asarray(np.argsort(x), dtype=np.int64)[:3] * 70000
np.argsort(x).astype(np.intp)[:3] * 70000
np.argsort(x).astype(int)[:3] * 70000
np.argsort(x).astype('int32')[:3] * np.int32(70000)
np.argsort(x).astype(np.int32)[:3] ** 2
np.argsort(x).copy()[:3] * 70000
np.ascontiguousarray(np.argsort(x))[:3] * 70000
np.ma.array(np.argsort(x))[:3] * 70000
np.ma.array(np.argsort(small), mask=[0, 1, 0, 0, 0]).sum() * 10**10
np.matrix(np.argsort(x)[:4].reshape(2, 2)) ** 2
np.asmatrix(np.argsort(x)[:3]) * np.asmatrix(np.argsort(x)[:3]).T
sum(np.argsort(x).tolist())
sum(np.argsort(x)[:50000])
max(np.argsort(x)) * 10**6
math.prod(np.argsort(x)[:3])
math.factorial(np.argmax([0] * 14 + [1]))
statistics.mean((np.argsort(x)[:3] ** 2).tolist())
[i ** 2 for i in np.flatnonzero(mask)[-3:]]
[int(i) ** 2 for i in np.flatnonzero(mask)[-3:]]
{int(i): i * 10**6 for i in np.argsort(x)[:2]}
Counter(np.argsort(small).tolist())
np.argsort(x)[0] ** 2
np.argsort(x)[0] * np.argsort(x)[0]
np.argsort(x).item(0) ** 2
np.argsort(x).flat[0] ** 2
np.argsort(x).reshape(7, -1)[0, 0] ** 2
next(iter(np.argsort(x))) ** 2
type(np.argmax(x)).__name__
type(np.argsort(x)[0]).__name__
type(np.count_nonzero(mask)).__name__
repr(np.argmax(x[::-1]))
repr(np.argsort(small))
str(np.argsort(small))
repr(np.where(small > 2))
repr(np.bincount([1, 1]))
repr(np.unique(k, return_counts=True))
repr(np.argsort(small) * 2)
repr(np.argsort(small).max())
f'{np.argmax(x[::-1]) * 10**6:,}'
f'{np.argsort(x)[0] ** 2}'
'%d' % (np.argmax(x[::-1]) * 10**6)
np.argmax(x[::-1]).dtype
np.argmax(x[::-1]).itemsize
np.intp(70000) ** 2
np.intp(70000) * np.intp(70000)
np.intp(5)
np.intp(3 * 10**9)
np.array([70000], dtype=np.intp) ** 2
np.zeros(3, dtype=np.intp) + 2**40
np.arange(3, dtype=np.intp) * 10**10
np.full(3, 70000, dtype=np.intp) ** 2
np.int32(70000) * np.int32(70000)
np.array([70000], dtype=np.int32) ** 2
np.array([70000], dtype='i4') * 70000
np.array([70000], dtype='<i4') * 70000
np.array([70000], dtype=np.intc) * 70000
np.array([70000]).astype('int32') * 70000
np.array([2**31 - 1], dtype=np.int32) + 1
np.array([2**31 - 1], dtype=np.int32) + np.int32(1)
np.array([1, 2], dtype=np.int32).sum()
np.array([70000], dtype=np.int32) + np.array([1])
np.array([70000], dtype=np.int32) * np.argsort(small)[:1]
np.array([70000] * 3, dtype=np.int32) @ np.array([70000] * 3, dtype=np.int32)
np.frombuffer(np.array([70000], '<i4').tobytes(), '<i4') * 70000
np.array([70000], '>i4') * 70000
np.array([(70000, 1.0)], dtype=[('a', 'i4'), ('b', 'f8')])['a'] * 70000
np.loadtxt(io.StringIO('70000 2'), dtype=np.int32) * 70000
np.int32
np.intc
np.dtype('int32')
np.dtype('intc')
np.dtype(np.int32)
np.dtype('i4') == np.int32
repr(np.int32(5))
repr(np.array([1], dtype=np.int32))
np.int32(5).dtype.name
np.result_type(np.int32, np.int64)
np.result_type(np.argsort(small), np.int8)
np.result_type(np.argsort(small), 5)
np.promote_types(np.int32, np.int16)
np.can_cast(np.int64, np.int32)
np.iinfo(np.int32).max
np.iinfo(np.int64).max
np.issubdtype(np.argsort(small).dtype, np.integer)
np.isscalar(np.argmax(x))
isinstance(np.argmax(x), np.integer)
isinstance(np.argmax(x), np.int64)
days + np.argsort(small) * 10**5
days + np.argmax(x[::-1]) * 10**2
np.datetime64('2020-01-01T00:00:00') + np.argsort(x)[:2] * 70000
np.timedelta64(1, 's') * np.argsort(x)[:2] * 70000
np.argsort(x)[:2] * np.timedelta64(70000, 's')
np.argsort(x)[:2].astype('timedelta64[s]') * 70000
np.timedelta64(10**10, 's') / (np.argsort(small)[:1] + 1)
np.busday_offset('2020-01-01', np.argsort(small))
np.char.str_len(names) * 10**10
np.strings.find(names, 'c') * 10**10
np.strings.count(names, 'a') * 10**10
np.strings.str_len(names).sum() * 10**10
np.char.find(names, 'b') ** 3 * 10**10
np.argwhere(mask)[-1] * 10**6
np.argwhere(mask).sum() * 10**6
np.count_nonzero(mask) * 10**6
np.count_nonzero(mask.reshape(7, -1), axis=1) * 10**6
np.ndim(np.argsort(x)) * 10**10
np.size(x) * 10**6
x.size ** 2
len(x) ** 2
x.shape[0] ** 3
x.nbytes * 10**5
np.prod(x.reshape(7, 100, -1).shape) ** 2
np.ravel_multi_index((60000, 1), (70000, 30000)) * 10
np.unravel_index(np.argmax(x[::-1]), (700, 100))[0] * 10**8
np.unravel_index(69999, (700, 100))[1] * 10**9
np.searchsorted(x[::-1], 5000.) ** 3
np.searchsorted(x[::-1], [5000., 9000.]) ** 3
np.digitize(5000., x[::-1]) ** 3
np.digitize([5000., 9000.], x[::-1]) ** 3
np.diag_indices(3)[0] * 10**10
np.tril_indices(3)[0] * 10**10
np.triu_indices_from(np.eye(3))[1] * 10**10
np.ix_(np.argsort(small))[0] * 10**10
np.mask_indices(3, np.triu)[0] * 10**10
np.histogram(x, 4)[0].astype(float) ** 2
np.histogram(x, 4)[0].cumsum() * 10**6
np.histogram(x, 4)[0] / np.histogram(x, 4)[0].sum()
np.histogram(x, 4, density=True)[0]
np.histogram(x, 4, weights=np.argsort(x))[0]
np.histogram2d(x, x, 2)[0] * 10**6
np.histogramdd(x[:, None], 2)[0] * 10**6
np.bincount(k, minlength=9) * 10**6
np.bincount(k, weights=np.argsort(x))
np.bincount(np.argsort(small)) * 10**10
np.unique(k, return_counts=True)[1] ** 3
np.unique_counts(k).counts ** 3
np.unique_inverse(k).inverse_indices[:9] * 10**10
np.unique_all(k).indices * 10**10
np.argpartition(small, 2)[:2] * 10**10
np.argmax(small.reshape(1, 5), axis=1) * 10**10
np.argmin(small.reshape(1, 5), axis=1) * 10**10
np.nanargmax(x[::-1]) * 10**6
np.nanargmin(x) * 10**6
np.nanargmax(small.reshape(1, 5), axis=1) * 10**10
np.arange(70000)[np.argsort(x)][:3] * 70000
np.lexsort((x,))[:3] * 70000
pickle.loads(pickle.dumps(np.argsort(x)))[:3] * 70000
pickle.loads(pickle.dumps(np.argsort(x), protocol=5))[:3] * 70000
pickle.loads(pickle.dumps(np.argmax(x[::-1]))) * 10**6
pickle.loads(pickle.dumps(np.array([70000], np.int32))) * 70000
copy.deepcopy(np.argsort(x))[:3] * 70000
(lambda f: (np.save(f, np.argsort(x)), f.seek(0), np.load(f))[2])(io.BytesIO())[:3] * 70000
(lambda f: (np.savez(f, a=np.argsort(x)), f.seek(0), np.load(f)['a'])[2])(io.BytesIO())[:3] * 70000
(lambda f: (np.savetxt(f, np.argsort(x)[:3], '%d'), f.getvalue())[1])(io.StringIO())
(lambda a: a.__imul__(2))(np.argsort(x))[:3]
(lambda a: a.__iadd__(np.argsort(x)))(np.argsort(x))[:3]
(lambda a: (np.add.at(a, [0, 0], 5), a)[1])(np.argsort(small))
(lambda a: (np.put(a, 0, 9), a)[1])(np.argsort(small)) * 10**10
(lambda a: (a.sort(), a)[1])(np.argsort(x))[-3:] * 70000
(lambda a: (a.fill(7), a)[1])(np.argsort(small)) * 10**10
(lambda a: (np.copyto(a, 7), a)[1])(np.argsort(small)) * 10**10
np.array([3e9, -3e9]).astype(np.int64)
np.array([70000.7]).astype(np.intp) ** 2
np.array([70000], np.uint32).astype(np.intp) ** 2
np.array(['70000']).astype(np.intp) ** 2
np.array([70000], object).astype(np.intp) ** 2
np.asarray([70000], dtype=np.intp) ** 2
np.random.default_rng(1).permutation(70000).argsort()[:3] * 70000
np.random.default_rng(1).integers(0, np.argsort(x)[:3] + 1) * 70000
np.random.RandomState(1).permutation(70000)[:3] * 70000
np.random.default_rng(1).choice(np.argsort(x), 3) * 70000
np.random.default_rng(1).multinomial(10**5, [0.5, 0.5]) ** 2
np.meshgrid(np.argsort(small), np.argsort(small))[0] * 10**10
np.fft.fft(np.argsort(small) ** 2).real
np.nan_to_num(np.argsort(x) * 70000)[:3]
np.around(np.argsort(x) * 70000, -3)[:3]
np.trapezoid(np.argsort(x) ** 2)
np.i0(np.argsort(small))
np.sum(np.argsort(x) * np.bincount(k)[0])
np.sum([np.argmax(x[::-1]), 2**31])
np.max([np.argmax(x[::-1]) * 10**6, 1])
np.array([np.argmax(x[::-1]), 1]) * 10**6
np.array([np.argmax(x[::-1]) * 10**6, 1])
np.argsort(x)[np.argsort(x)][:3] * 70000
(np.argsort(x)[:, None] * np.argsort(x)[None, :2])[:2]
(np.argsort(x) * 1000 + np.argsort(x)).max()
((np.argsort(x) + 1) * (np.argsort(x) + 2) // 2)[:3]
(np.argsort(x) - np.argsort(x).mean()) [:3] ** 2
np.sum((np.argsort(x) - np.argsort(-x)) ** 2)
1 - 6 * np.sum((np.argsort(x) - np.argsort(-x)) ** 2) / (70000 * (70000**2 - 1))
np.flatnonzero(mask).tolist()[-1] ** 2
np.flatnonzero(np.diff(mask.astype(int)))[0] * 10**6
np.split(np.argsort(x), [2])[0] * 70000
np.array_split(np.argsort(x), 3)[0][:2] * 70000
np.pad(np.argsort(small), 1) * 10**10
np.block([np.argsort(small), np.argsort(small)]) * 10**10
np.broadcast_to(np.argsort(small)[:1], 3) * 10**10
np.lib.stride_tricks.sliding_window_view(np.argsort(x), 3).prod(axis=1)[:3]
"""

_PANDAS = """
pd.Series(x).argsort() * 70000
pd.Series(x).argsort().dtype
pd.Series(x).argmax() * 10**6
pd.Series(x[::-1]).argmax() * 10**6
pd.Series(x[::-1]).idxmax() * 10**6
pd.Series(x[::-1]).searchsorted(5000.) ** 3
pd.Series(np.argsort(x)) ** 2
pd.Series(np.argsort(x)).dtype
pd.Series(np.argsort(x)).sum() ** 2
pd.Series(np.argsort(small)).describe()
pd.Series(np.argsort(small))
str(pd.Series(np.argsort(small)))
pd.Series(np.argsort(x), name='a').to_frame().dtypes
pd.Series(np.argsort(x)).cumsum().iloc[-1]
pd.Series(np.argsort(x)).cumprod().iloc[-1]
(pd.Series(np.argsort(x)[:3]) + 1).prod()
pd.Series(np.argsort(x)).mean() * 10**6
pd.Series(np.argsort(x)).var()
pd.Series(np.argsort(x)).rolling(2).sum().iloc[-1]
pd.Series(np.argsort(x)).diff().iloc[1] * 10**10
pd.Series(np.argsort(x)).shift(1).iloc[1] * 10**6
pd.Series(np.argsort(x)).apply(lambda v: v ** 2).iloc[:2]
pd.Series(np.argsort(x)).map(lambda v: v ** 2).iloc[:2]
pd.Series(np.argsort(x)).dot(pd.Series(np.argsort(x)))
pd.Series(np.argsort(x)).iloc[0] ** 2
pd.Series(np.argsort(x)).values[:3] ** 2
pd.Series(np.argsort(x)).to_numpy()[:3] ** 2
pd.Series(np.argsort(x)).astype('int32').iloc[:3] ** 2
pd.Series([70000], dtype='int32') * 70000
pd.Series([70000], dtype=np.int32) ** 2
pd.Series([70000], dtype='Int32') + 1
pd.Series([70000], dtype='Int64') ** 2
pd.Series(np.argsort(x), dtype='Int64').iloc[:3] ** 2
pd.Series(np.argsort(x), dtype=np.intp).iloc[:3] ** 2
pd.Series(np.bincount(k)) ** 3
pd.Series(np.where(mask)[0]).iloc[-3:] * 60000
pd.Series({'a': np.argmax(x[::-1])}) * 10**6
pd.Series([np.argmax(x[::-1]), 1]) * 10**6
pd.DataFrame({'p': np.argsort(x)}).dtypes
pd.DataFrame({'p': np.argsort(x)}).iloc[:3] ** 2
pd.DataFrame({'p': np.argsort(x), 'q': x}).dtypes
pd.DataFrame(np.argsort(x).reshape(-1, 7)).iloc[:2] * 10**6
pd.DataFrame(np.argsort(x).reshape(-1, 7)).sum() ** 2
pd.DataFrame({'p': np.argsort(x)}).eval('p * p').iloc[:2]
pd.DataFrame({'p': np.argsort(x)}).query('p * p > 2**31').shape
pd.DataFrame({'p': np.argsort(x)}).agg(['sum', 'max'])
pd.DataFrame({'p': np.argsort(x), 'g': k}).groupby('g').p.sum() ** 2
pd.DataFrame({'p': np.argsort(x), 'g': k}).groupby('g').p.prod()
pd.DataFrame({'p': np.argsort(x), 'g': k}).groupby('g').p.cumsum().iloc[-3:]
pd.DataFrame({'p': np.argsort(x), 'g': k}).groupby('g').p.transform('sum').iloc[:3]
pd.DataFrame({'p': np.argsort(x), 'g': k}).groupby('g').p.apply(lambda s: (s ** 2).sum())
pd.DataFrame({'p': np.argsort(x)}).assign(q=lambda d: d.p ** 2).q.iloc[:2]
pd.DataFrame({'p': np.argsort(x)}).to_numpy()[:3] ** 2
pd.DataFrame({'p': np.argsort(small)}).to_csv()
pd.DataFrame({'p': np.argsort(small)}).to_dict('list')
pd.DataFrame({'p': np.argsort(small) * 10**10}).to_json()
df.assign(p=np.argsort(df.v)).dtypes
df.assign(p=np.argsort(df.v)).p.iloc[:3] * 10**8
df.assign(p=np.argsort(df.v.to_numpy())).p.iloc[:3] * 10**8
df.groupby('g').indices[1] * 10**9
long.groupby('g').indices[1][-3:] * 60000
df.groupby('g').ngroup().iloc[-3:] * 10**10
df.groupby('g').cumcount().iloc[-3:] * 10**10
df.groupby('g').size() * 10**10
df.groupby('g').v.count() * 10**10
df.groupby('g').v.nunique() * 10**10
df.groupby('g').v.idxmax() * 10**10
df.groupby('g').v.rank().iloc[:3] * 10**10
df.groupby('g').v.agg(np.argmax) * 10**10
df.groupby('g').w.agg(['sum', 'prod'])
df.groupby(['g', 's']).size().unstack(fill_value=0).sum() * 10**10
df.groupby('g').ngroups * 10**10
df.groupby(pd.cut(df.v, 3), observed=False).size() * 10**10
df.g.value_counts() * 10**10
df.g.value_counts(normalize=True)
df.g.nunique() * 10**10
df.s.factorize()[0][:9] * 10**10
pd.factorize(df.s)[0][:9] * 10**10
df.s.astype('category').cat.codes.iloc[:3] * 100
df.s.astype('category').cat.codes.iloc[:3].astype(int) * 10**10
pd.Categorical(df.s).codes[:5]
pd.crosstab(df.g, df.s) * 10**10
pd.pivot_table(df, index='g', values='w', aggfunc='sum') * 10**10
pd.cut(df.v, 3, labels=False).iloc[:3] * 10**10
pd.qcut(df.w, 4, labels=False).iloc[-3:] * 10**10
pd.cut(x, 3, labels=False)[:3] * 10**10
pd.cut(df.v, 3).value_counts() * 10**10
pd.Index(x).argsort()[:3] * 70000
pd.Index(np.argsort(x))[:3] * 70000
pd.Index(np.argsort(x)).dtype
pd.Index(np.argsort(x)).sum() if hasattr(pd.Index, 'sum') else 0
pd.Index(x[::-1]).get_loc(15000.) ** 3
pd.Index(x).get_indexer([0., 1.5]) * 70000
pd.Index(x[::-1]).searchsorted(15000.) ** 3
pd.Index(k).get_indexer_non_unique([1])[0][-3:] * 60000
pd.Index(list('ab')).get_indexer(['b', 'c']) * 10**10
pd.MultiIndex.from_arrays([k, k]).codes[0][:9] * np.int64(10**10)
pd.MultiIndex.from_product([range(3), range(3)]).get_indexer([(2, 2)]) * 10**10
pd.RangeIndex(70000).argsort()[-3:] * 70000
pd.RangeIndex(70000)[-1] ** 2
pd.Index(np.flatnonzero(mask))[-3:] * 60000
df.set_index('w').index.argsort()[-3:] * 10**9
df.index.values[-3:] * 10**9
df.index[np.argsort(df.v)][:3] * 10**9
df.iloc[np.argsort(df.v)].w.iloc[:3] * 10**9
df.loc[np.flatnonzero(df.v > 104_950)].w.iloc[-3:] * 10**9
df.take(np.argsort(df.v)[:3]).w * 10**9
df.sort_values('v').index[:3] * 10**9
df.rank().w.iloc[:3] * 10**10
df.nlargest(3, 'w').index * 10**9
df.v.argmax() * 10**10
df.v.argmin() * 10**9
df.v.argsort().iloc[:3] * 10**9
df.v.argsort().dtype
df.duplicated('g').sum() * 10**9
df.isna().sum() * 10**10
df.count() * 10**9
df.shape[0] ** 9
df.size * 10**9
len(df) ** 9
df.drop(columns='s').memory_usage(index=False).sum()
df.dtypes
df.w.astype('int32') * 10**8
df.w.astype('int32').dtype
df.w.astype(np.int32).sum()
df.w.astype(np.int32).cumsum().iloc[-1]
df.astype({'w': 'int32'}).dtypes
df.convert_dtypes().dtypes
pd.to_numeric(pd.Series(['1', '70000']), downcast='integer')
pd.to_numeric(pd.Series(['1', '70000']), downcast='integer') * 70000
pd.read_csv(io.StringIO('a,b\\n1,70000\\n2,3'), dtype='int32').b * 70000
pd.read_csv(io.StringIO('a,b\\n1,70000\\n2,3')).b * 70000
pd.read_csv(io.StringIO('a,b\\n1,70000\\n2,3'), dtype='int32').dtypes
stamps.year * 10**9
stamps.year.dtype
stamps.dayofyear * 10**9
pd.Series(stamps).dt.day * 10**9
pd.Series(stamps).dt.day.dtype
pd.Series(stamps).dt.isocalendar().week * 10
pd.Series(stamps).dt.days_in_month
pd.Series(stamps - stamps[0]).dt.days * 10**10
(stamps - stamps[0]).days * 10**10
(stamps[-1] - stamps[0]).days * 10**10
stamps[0] + pd.to_timedelta(np.argsort(x)[:2] * 70000, unit='s')
pd.to_timedelta(np.argsort(small), unit='D') * 100
pd.to_datetime(np.argsort(x)[:2] * 70000, unit='s')
pd.Timestamp('2020-01-01') + pd.Timedelta(days=int(np.argmax(small)))
pd.Timestamp('2020-01-01') + pd.Timedelta(np.argmax(x[::-1]), unit='s')
pd.period_range('2020', periods=3, freq='M').year * 10**9
pd.interval_range(0, 3).get_indexer([0.5, 2.5]) * 10**10
pd.Series(np.argsort(small)).value_counts() * 10**10
pd.Series(np.argsort(x)).rank().iloc[0] * 10**6
pd.Series(np.argsort(x)).quantile(0.5) * 10**6
pd.Series(np.argsort(x)).clip(0, 10**10).iloc[:2] ** 2
pd.Series(np.argsort(x)).where(lambda s: s > 5, 10**10).iloc[-3:]
pd.Series(np.argsort(x)).mask(lambda s: s > 5, 10**10).iloc[:3]
pd.Series(np.argsort(x)).replace(69999, 10**10).iloc[:2]
pd.Series(np.argsort(small)).isin([1, 10**10])
pd.concat([pd.Series(np.argsort(small)), pd.Series([10**10])]).max()
pd.concat([pd.Series(np.argsort(small)), pd.Series(np.bincount(k))]) * 10**9
pd.merge(df, pd.DataFrame({'g': np.argsort(small), 'z': 1})).shape
pd.merge(df, pd.DataFrame({'g': np.argsort(small), 'z': np.argsort(small)}), on='g').z.iloc[:3] * 10**10
pd.get_dummies(df.s).sum() * 10**9
pd.get_dummies(df.s).to_numpy().argmax(axis=1)[:9] * 10**10
text.str.len() * 10**10
text.str.find('a') * 10**10
text.str.count('a') * 10**10
text.str.len().sum() * 10**10
text.str.len().dtype
text.str.index('a') if text.str.contains('a').all() else 0
text.map(len) * 10**10
text.argsort() * 10**10
df.resample('D', on='t').size() if 't' in df else df.w.sum() * 10**9
pd.Series(1, index=stamps).resample('2D').count() * 10**10
pd.Series(x[:70]).rolling(3).apply(np.argmax, raw=True).iloc[-3:] * 10**10
pd.Series(np.argsort(x)).expanding().sum().iloc[-1]
pd.Series(np.argsort(x)).ewm(alpha=0.5).mean().iloc[-1]
pd.Series(np.argsort(x)).autocorr()
pd.Series(np.argsort(x)).corr(pd.Series(np.argsort(x) ** 2))
pd.Series(np.argsort(x)).sample(3, random_state=1) * 70000
pd.array(np.argsort(x))[:3] * 70000
pd.array(np.argsort(small), dtype='Int64') * 10**10
pd.arrays.SparseArray(np.bincount(k)).sum() ** 2
np.asarray(df.w) * 10**9
pickle.loads(pickle.dumps(pd.Series(np.argsort(x)))).iloc[:3] * 70000
np.searchsorted(df.w, 35) * 10**9
np.argsort(df.v)[:3] * 10**9
np.argsort(df.v).dtype
np.bincount(df.g) ** 9
np.where(df.w > 35)[0][:3] * 10**9
np.where(df.w > 35, df.w, 0)[-3:] * 10**9
np.unique(df.g, return_counts=True)[1] ** 9
np.histogram(df.w, 3)[0] ** 6
pd.Series(np.histogram(df.w, 3)[0]) ** 6
df.pivot(index='w', columns='s', values='g').count() * 10**9
df.stack().shape[0] * 10**9
df.explode('s').shape[0] * 10**9
df.melt().shape[0] * 10**9
df.info(buf=io.StringIO(), memory_usage=False)
(lambda b: (df.assign(p=np.argsort(df.v)).info(buf=b, memory_usage=False), b.getvalue())[1])(io.StringIO())
df.describe().loc['count'] * 10**10
df.corr(numeric_only=True).iloc[0, 1]
df.select_dtypes('int64').columns.tolist()
df.assign(p=np.argsort(df.v)).select_dtypes('int64').columns.tolist()
df.to_records(index=False).w[:3] * 10**10
df.assign(p=np.argsort(df.v)).eval('p * 1000000000').iloc[:2]
pd.eval('a * 10**10', local_dict={'a': np.argsort(small)})
"""

_OTHERS = """
sparse.getnnz(axis=0) * 10**8
sparse.getnnz() * 10**8
sparse.nnz ** 2
sparse.indices[:3] * 10**10
sparse.indices.dtype
sparse.indptr[-3:] * np.int64(70000)
sparse.indptr.dtype
sparse.nonzero()[0][-3:] * 70000
sparse.sum(axis=0)
(sparse.T @ sparse).toarray()
sparse.argmax(axis=0)
np.asarray(sparse.argmax(axis=0)).ravel() * 70000
sparse.max() ** 2
sp.find(sparse)[0][-3:] * 70000
sparse.tocoo().row[-3:] * np.int64(70000)
sparse.tocoo().row.dtype
sparse.tocsc().getnnz(axis=1)[:3] * 10**10
np.diff(sparse.indptr)[:3] * 10**10
np.diff(sparse.tocsc().indptr) * np.int64(10**6)
sp.csr_matrix((np.ones(3), (np.argsort(small)[:3], np.argsort(small)[:3]))).toarray()
sp.coo_matrix((np.ones(3), (np.argsort(small)[:3] * 2, np.argsort(small)[:3] // 2))).toarray().shape
sp.csr_array(np.eye(3))[np.argsort(small)[:1] * 0].toarray()
sp.random(9, 9, 0.3, random_state=1).tocsr().getnnz(axis=1) * 10**10
sp.diags([1, 2, 3]).tocsr().indices
ndi.label(wave > 0)[1] * 10**8
ndi.label(wave > 0)[0].max() * 10**8
ndi.label(wave > 0)[0][-3:] * np.int64(10**8)
ndi.label(wave > 0)[0].dtype
ndi.maximum_position(wave)[0] * 10**8
ndi.sum(np.argsort(x), ndi.label(wave > 0)[0], [1, 2])
ndi.center_of_mass(small)
ndi.find_objects(ndi.label(small > 2)[0])[0]
ndi.histogram(small, 0, 6, 3) * 10**10
sig.find_peaks(wave)[0][-3:] * 10**6
sig.find_peaks(wave)[0].dtype
sig.find_peaks(wave)[0].sum() ** 2
np.diff(sig.find_peaks(wave)[0])[:3] * 10**8
sig.peak_prominences(wave, sig.find_peaks(wave)[0])[0][:2]
sig.peak_widths(wave, sig.find_peaks(wave)[0])[0][:2]
sig.peak_prominences(wave, sig.find_peaks(wave)[0][::2] + 0)[0][:2]
sig.argrelextrema(wave, np.greater)[0][-3:] * 10**6
sig.argrelmax(wave)[0][-3:] * 10**6
sig.correlation_lags(70000, 70000)[-1] * 10**6
sig.fftconvolve(np.argsort(small), np.argsort(small))
sig.convolve(np.argsort(x)[:9], np.argsort(x)[:9])[:5]
sig.correlate(np.argsort(x)[:9], np.argsort(x)[:9])[:5]
np.argmax(sig.correlate(wave[:500], wave[:500])) ** 4
st.rankdata(x)[:3] ** 2
st.rankdata(small, method='ordinal') * 10**10
st.rankdata(small, method='dense') * 10**10
st.mode(k).count * 10**6
st.mode(k).mode * 10**10
st.spearmanr(np.argsort(x), np.argsort(-x)).statistic
st.pearsonr(np.argsort(x), np.argsort(x) ** 2).statistic
st.kendalltau(np.argsort(small), small).statistic
st.binned_statistic(x, x, bins=3).binnumber[:3] * 10**10
st.binned_statistic(x, x, 'count', bins=3).statistic * 10**6
st.describe(np.argsort(x)).variance
st.zscore(np.argsort(x))[:3]
st.chisquare(np.bincount(k)).statistic
st.chi2_contingency(np.array([np.bincount(k), np.bincount(k)[::-1] + np.arange(7)])).statistic
st.contingency.crosstab(k, k).count * 10**6
st.entropy(np.bincount(k))
st.mannwhitneyu(np.argsort(x)[:9000], np.argsort(-x)[:9000]).statistic
st.wilcoxon(np.arange(1, 50), np.arange(1, 50)[::-1] * 2).statistic
st.relfreq(small, 3).frequency
st.find_repeats(k).counts * 10**6 if hasattr(st, 'find_repeats') else 0
st.ks_2samp(np.argsort(x)[:500], np.argsort(-x)[:500]).statistic
st.percentileofscore(np.argsort(x) ** 2, 10**9)
spatial.cKDTree(line).query(line[-3:])[1] * 70000
spatial.cKDTree(line).query(line[-3:], 2)[1] * 70000
spatial.KDTree(line).query(line[-1])[1] * 70000
spatial.KDTree(line).query_ball_point(line[-1], 1)[0] * 70000
spatial.KDTree(line).count_neighbors(spatial.KDTree(line[-3:]), 9) * 10**10
spatial.ConvexHull(points).vertices * np.int64(10**10)
spatial.ConvexHull(points).vertices.dtype
spatial.Delaunay(points).simplices.dtype
spatial.distance.cdist(points, points).argmin(axis=1) * 10**10
spatial.distance.pdist(np.argsort(small)[:, None] * 10**6)
opt.linear_sum_assignment(np.eye(70))[1][:3] * 10**10
opt.linear_sum_assignment(np.eye(70))[0].sum() * 10**10
hier.fcluster(hier.linkage(points), 2, 'maxclust') * np.int32(100)
hier.fcluster(hier.linkage(points), 2, 'maxclust').dtype
hier.leaves_list(hier.linkage(points))
csgraph.connected_components(sp.eye(70).tocsr())[0] * 10**9
csgraph.connected_components(sp.eye(70).tocsr())[1].dtype
csgraph.shortest_path(nx.to_scipy_sparse_array(graph)).max() * 10**9
csgraph.breadth_first_order(nx.to_scipy_sparse_array(graph), 0)[0][-3:]
csgraph.minimum_spanning_tree(nx.to_scipy_sparse_array(graph)).nnz * 10**9
csgraph.dijkstra(nx.to_scipy_sparse_array(graph), indices=0, return_predecessors=True)[1][-3:]
preprocessing.LabelEncoder().fit_transform(x[::-1])[-3:] * 60000
preprocessing.LabelEncoder().fit_transform(x).dtype
preprocessing.LabelEncoder().fit(x).transform(x[:3]) * 60000
preprocessing.OrdinalEncoder().fit_transform(names[:, None]).ravel() * 10**10
preprocessing.OneHotEncoder().fit_transform(names[:, None]).indices[:3]
preprocessing.KBinsDiscretizer(3, encode='ordinal', quantile_method='linear').fit_transform(line[:9]).ravel() * 10**10
preprocessing.label_binarize(y, classes=[0, 1]).sum() * 10**10
preprocessing.MultiLabelBinarizer().fit_transform([[1], [2]]).sum() * 10**10
metrics.multilabel_confusion_matrix([0] * 70000, [0] * 70000)**2
metrics.confusion_matrix([0] * 70000, [0] * 70000)**2
metrics.confusion_matrix(y, p) * 10**10
metrics.confusion_matrix(y, p).ravel() * 10**10
metrics.confusion_matrix(y, p).dtype
metrics.accuracy_score(y, p)
metrics.matthews_corrcoef(np.r_[[0] * 70000, [1] * 70000], np.r_[[0] * 69000, [1] * 71000])
metrics.cohen_kappa_score(np.r_[[0] * 70000, [1] * 70000], np.r_[[0] * 69000, [1] * 71000])
metrics.f1_score(y, p)
metrics.roc_auc_score(y, p)
metrics.roc_curve(y, p)[0]
metrics.precision_recall_fscore_support(y, p)[3] * 10**10
metrics.classification_report(y, p)
metrics.adjusted_rand_score(k, k[::-1])
metrics.rand_score(k, k[::-1])
metrics.fowlkes_mallows_score(k, k[::-1])
metrics.normalized_mutual_info_score(k, k)
metrics.cluster.contingency_matrix(k, k)[:2] * 10**6
metrics.cluster.pair_confusion_matrix(k, k[::-1])
metrics.mutual_info_score(k, k)
metrics.zero_one_loss(y, p, normalize=False) * 10**10
metrics.hamming_loss(y, p)
metrics.pairwise_distances_argmin(points, points) * 10**10
metrics.pairwise.euclidean_distances(np.argsort(small)[:, None] * 10**6).max()
metrics.ndcg_score([small], [small])
metrics.top_k_accuracy_score([0, 1, 2, 2], np.eye(4)[:, :3], k=1)
metrics.silhouette_score(points, [0, 0, 0, 1, 1])
nn.kneighbors(line[-3:])[1] * 70000
(nn.kneighbors(line[-3:])[1] ** 2).sum()
nn.kneighbors(line[-3:], return_distance=False).ravel() ** 2
nn.kneighbors_graph(line[-3:]).indices.sum() * 10**6
nn.radius_neighbors(line[-1:], 1)[1][0].sum() * 70000
found[0, 0] * 70000
found * 70000
np.mean(found ** 2)
neighbors.KDTree(line).query(line[-3:], 1)[1] * 70000
neighbors.BallTree(line).query(line[-3:], 1)[1] * 70000
neighbors.KDTree(line).query_radius(line[-1:], 1, count_only=True) * 10**10
neighbors.KNeighborsClassifier(1).fit(points, [0, 1, 2, 3, 4]).predict(points) * 10**10
neighbors.KNeighborsRegressor(1).fit(line, np.argsort(x)).predict(line[:1]) ** 2
cluster.KMeans(2, n_init=1, random_state=0).fit(points).labels_.dtype
cluster.KMeans(2, n_init=1, random_state=0).fit(points).n_iter_ * 10**10
cluster.DBSCAN(1.5).fit(line[:5]).labels_ * 10**10
cluster.DBSCAN(1.5).fit(line[:5]).core_sample_indices_ * 10**10
cluster.AgglomerativeClustering(2).fit(points).labels_ * 10**10
cluster.AgglomerativeClustering(2).fit(points).labels_.dtype
cluster.AgglomerativeClustering(2).fit(points).children_ * 10**10
cluster.SpectralClustering(2, random_state=0).fit(points).labels_.shape
cluster.MeanShift(bandwidth=5).fit(points).labels_ * 10**10
cluster.OPTICS(min_samples=2).fit(points).ordering_ * 10**10
cluster.HDBSCAN(min_cluster_size=2, copy=True).fit(points).labels_ * 10**10
cluster.Birch(n_clusters=2).fit(points).labels_ * 10**10
np.bincount(cluster.AgglomerativeClustering(2).fit(points).labels_) * 10**10
tree.DecisionTreeClassifier().fit(line[:8], y).apply(line[:8].astype('f4')) * 10**10
tree.DecisionTreeClassifier().fit(line[:8], y).tree_.n_node_samples * 10**10
tree.DecisionTreeClassifier().fit(line[:8], y).tree_.children_left[:3] * 10**10
tree.DecisionTreeClassifier().fit(line[:8], y).tree_.feature[:3] * 10**10
tree.DecisionTreeClassifier().fit(line[:8], y).tree_.node_count ** 12
tree.DecisionTreeClassifier().fit(line[:8], y).get_depth() * 10**10
tree.DecisionTreeRegressor().fit(line[:99], np.argsort(x)[:99]).predict(line[:2]) ** 2
ensemble.RandomForestClassifier(3, random_state=0).fit(line[:8], y).apply(line[:8].astype('f4')).sum() * 10**10
ensemble.RandomForestRegressor(3, random_state=0).fit(line[:99], np.argsort(x)[:99]).predict(line[:2])
ensemble.HistGradientBoostingClassifier(max_iter=2).fit(line[:80], k[:80] > 3).predict(line[:3]).sum() * 10**10
ensemble.GradientBoostingRegressor(n_estimators=3, random_state=0).fit(line[:99], np.argsort(x)[:99]).predict(line[:2])
ensemble.IsolationForest(random_state=0, n_estimators=5).fit(line[:50]).predict(line[:3]) * 10**10
linear_model.LinearRegression().fit(line[:99], np.argsort(x)[:99] ** 2).predict(line[:2])
linear_model.LogisticRegression().fit(line[:8], y).n_iter_ * 10**8
linear_model.LogisticRegression().fit(line[:8], y).predict(line[:8]) * 10**10
linear_model.Lars().fit(points, small).active_
naive_bayes.MultinomialNB().fit(np.eye(8), y).class_count_ * 10**10
naive_bayes.CategoricalNB().fit(np.eye(8, dtype=int), y).n_categories_ * 10**10
decomposition.PCA(1).fit(points).explained_variance_
feature_extraction.text.CountVectorizer().fit_transform(['a1 b1 b1']).toarray() * 10**10
feature_extraction.text.CountVectorizer().fit_transform(['a1 b1 b1']).dtype
feature_extraction.text.CountVectorizer().fit(['a1 b1 b1']).vocabulary_
feature_extraction.text.TfidfVectorizer().fit_transform(['a1 b1', 'b1']).toarray()
feature_extraction.DictVectorizer().fit_transform([{'a': 1}, {'b': 2}]).toarray()
list(model_selection.KFold(2).split(line[:6]))[0][1] * 10**10
list(model_selection.KFold(2, shuffle=True, random_state=1).split(line[:6]))[0][0] * 10**10
list(model_selection.StratifiedKFold(2).split(line[:8], y))[0][0] * 10**10
list(model_selection.TimeSeriesSplit(2).split(line))[-1][1][-1] * 70000
list(model_selection.GroupKFold(2).split(line[:8], y, y))[0][1] * 10**10
list(model_selection.ShuffleSplit(1, random_state=0).split(line[:9]))[0][0] * 10**10
model_selection.train_test_split(np.argsort(x), random_state=0)[0][:3] * 70000
model_selection.train_test_split(np.arange(9), random_state=0)[1] * 10**10
model_selection.cross_val_score(linear_model.LogisticRegression(), line[:8], y, cv=2)
model_selection.GridSearchCV(linear_model.Ridge(), {'alpha': [1, 9]}, cv=2).fit(points, small).best_index_ * 10**10
model_selection.GridSearchCV(linear_model.Ridge(), {'alpha': [1, 9]}, cv=2).fit(points, small).cv_results_['rank_test_score']
datasets.load_iris().target[-3:] * 10**10
np.bincount(datasets.load_iris().target) ** 7
datasets.load_digits().target[:3].dtype
datasets.make_classification(20, random_state=0)[1].sum() * 10**10
datasets.make_blobs(9, random_state=0)[1] * 10**10
sm.OLS(np.argsort(x)[:99] ** 2, sm.add_constant(line[:99])).fit().params
sm.OLS(np.argsort(x)[:99], sm.add_constant(np.argsort(x)[:99] % 10)).fit().rsquared
sm.OLS(np.argsort(x)[:99], sm.add_constant(np.argsort(x)[:99] % 10)).fit().nobs * 10**10
sm.OLS(np.argsort(x)[:99], sm.add_constant(np.argsort(x)[:99] % 10)).fit().df_resid * 10**10
smf.ols('w ~ v', df).fit().params
smf.ols('p ~ v', df.assign(p=np.argsort(df.v))).fit().params
smf.ols('w ~ C(s)', df).fit().params
smf.poisson('g ~ w', df).fit(disp=0).params
sm.GLM(np.bincount(k[:30])[:5] + np.arange(5), sm.add_constant(small), family=sm.families.Poisson()).fit().params
sm.Logit(y, sm.add_constant(p)).fit(disp=0).params
sm.tsa.acf(np.argsort(x)[:99] ** 2, nlags=3)
sm.tsa.stattools.adfuller(np.random.default_rng(1).normal(size=300))[0]
sm.tsa.stattools.adfuller(np.random.default_rng(1).normal(size=300))[2] * 10**10
tsa.SimpleExpSmoothing(np.argsort(small) ** 9.0, initialization_method='estimated').fit(0.5, optimized=False).fittedvalues
tsa.seasonal_decompose(np.argsort(x)[:99] ** 2, period=3).trend[3:6]
sm.stats.runs.runstest_1samp(np.argsort(small)) if hasattr(sm.stats, 'runs') else 0
sm.nonparametric.lowess(small, np.argsort(small))[:, 1]
sm.distributions.ECDF(np.argsort(x) ** 2)(10**9)
sm.stats.multipletests([0.01, 0.04, 0.5])[1]
sm.stats.Table(np.array([[5, 9], [7, 2]])).test_nominal_association().statistic
nx.adjacency_matrix(graph).nnz * 10**9
nx.to_numpy_array(graph).argmax(axis=1)[-3:] * 10**9
nx.to_scipy_sparse_array(graph).indices[-3:] * np.int64(10**9)
nx.incidence_matrix(graph).indices.dtype
nx.pagerank(graph)[5]
nx.degree_histogram(graph)[2] * 10**9
np.array(nx.degree_histogram(graph)) * 10**9
np.array(graph.degree)[:, 1][:3] * 10**10
nx.laplacian_matrix(graph).toarray().argmax() * 10**9
nx.from_numpy_array(np.eye(3)).number_of_edges() * 10**10
nx.from_scipy_sparse_array(sp.eye(3).tocsr()).number_of_edges() * 10**10
nx.floyd_warshall_numpy(graph).max() * 10**9
nx.diameter(graph) * 10**9
sorted(nx.connected_components(graph), key=len)[0] == set(range(60))
nx.spectral_layout(nx.path_graph(4)).keys()
nx.triangles(nx.complete_graph(70))[0] * 10**7
nx.to_pandas_adjacency(graph).sum().sum() * 10**9
nx.to_pandas_edgelist(graph).target.iloc[-3:] * 10**9
"""


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


GRID = [
    operation.replace("{{", "{").replace("}}", "}").replace("({})", f"({source})")
    if "{{" in operation
    else operation.replace("{}", source)
    for source in _lines(_SOURCES)
    for operation in _lines(_OPERATIONS)
]
SINGLE = _lines(_NUMPY) + _lines(_PANDAS)
OTHERS = _lines(_OTHERS)

DIFFERENT = {
    "sig.find_peaks(wave)[0].dtype": "dtype('int32')",
    "preprocessing.LabelEncoder().fit_transform(x).dtype": "dtype('int32')",
    "cluster.AgglomerativeClustering(2).fit(points).labels_.dtype": "dtype('int32')",
}
"""Expressions that give something else in the guest, as `docs/limitations.md` says."""
