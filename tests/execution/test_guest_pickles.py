"""Positions in compiled code, and in pickles from here to native Python on x86-64, and back."""

from __future__ import annotations

from pathlib import Path

from tests.faces import error_of, says
from wasm_kernel import BaseSandbox

NATIVE = [
    line.split("\t")
    for line in Path(__file__).with_name("native_pickles.txt").read_text().splitlines()
]
"""Classes, and a native tree of `POINTS` of each, with leaves of one: base64 of a zipped pickle."""
POINTS = "np.array([[0.0, 0], [3, 4], [6, 9], [10, 1]])"


def test_pickled_trees_find_the_same_neighbours(module_sandbox: BaseSandbox) -> None:
    for kind, native in NATIVE:
        module, _, name = kind.rpartition(".")
        cell = f"""
import base64, copy, joblib, numpy as np, pickle, zlib
from {module} import {name}
native = zlib.decompress(base64.b64decode({native!r}))
tree = {name}({POINTS}, 1)
mapped = joblib.load(joblib.dump(tree, "tree")[0], mmap_mode="r")
copies = pickle.loads(native), pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree), mapped
for other in copies:
    print(type(other) is {name}, np.ravel(other.query([[9, 2], [6, 7]], 2)[1]).tolist())
nodes = next(each for each in tree.__getstate__() if each.dtype.itemsize not in (4, 8))
print(nodes.tobytes()[:40] in native)
"""
        found = "True [3, 1, 2, 1]"
        assert says(module_sandbox, cell).splitlines() == [*[found] * 4, "True"], kind


def test_positions_stay_positions_in_pickles_odd_nodes_fail(module_sandbox: BaseSandbox) -> None:
    """Natively the pickled type means `int32`, which has the same bytes."""
    cell = """
import numpy as np, pickle
kind, records = np.dtype(np.intp), np.zeros(2, [("a", np.intp), ("b", np.int32), ("c", float)])
records["a"] = records["b"] = 2**30
print([kind is np.intp for kind in (pickle.loads(pickle.dumps(each)).type for each in (
    kind, kind.newbyteorder(), np.dtype("i4")))])
read = pickle.loads(pickle.dumps(records))
print((read["a"] * 2).tolist(), (read["b"] * 2).tolist(), read.dtype == records.dtype)
"""
    assert says(module_sandbox, cell).splitlines() == [
        "[True, True, False]",
        "[2147483648, 2147483648] [-2147483648, -2147483648] True",
    ]
    cell = f"""
import numpy as np
from scipy.spatial import cKDTree
tree = cKDTree({POINTS})
nodes, *rest = tree.__getstate__()
tree.__setstate__((nodes[::-1].copy(), *rest))
"""
    assert "build the tree again" in error_of(module_sandbox.execute(cell))


def test_pickled_clusterings_have_hierarchies_cut_elsewhere(module_sandbox: BaseSandbox) -> None:
    cell = """
import numpy as np, pickle
from sklearn.cluster import HDBSCAN
model = HDBSCAN(min_cluster_size=2, copy=True).fit([[0.0], [0.1], [5], [5.1], [9]])
tree = model.__getstate__()["_single_linkage_tree_"]
print([tree.dtype[name].itemsize for name in tree.dtype.names])
for each in model, pickle.loads(pickle.dumps(model)):
    print(each.dbscan_clustering(1, 2).tolist())
"""
    assert says(module_sandbox, cell).splitlines() == ["[8, 8, 8, 8]", *["[0, 0, 1, 1, -1]"] * 2]


def test_saved_fields_of_positions_are_wide(module_sandbox: BaseSandbox) -> None:
    cell = """
import io, joblib, numpy as np
fields = [("a", np.intp), (("title", "b"), "i4"), ("c", [("d", ">l", 2)])]
def of(kind, align=False):
    made = np.zeros(2, np.dtype(kind, align=align))
    made["a"] = 2**30
    return made
aligned = of([("z", "i1"), *fields], align=True)
rows = [of(fields), aligned, of(fields).view(np.recarray), np.matrix([[2, 1]]).argsort()]
for made in rows:
    for save, load in (np.save, np.load), (lambda *to: joblib.dump(*to[::-1]), joblib.load):
        file = io.BytesIO()
        save(file, made)
        file.seek(0)
        read = load(file)
        numbers = read["a"] if read.dtype.names else read
        print(type(read).__name__, read.dtype.itemsize, (numbers * 2**30).max())
"""
    assert says(module_sandbox, cell).splitlines() == [
        *["ndarray 28 1152921504606846976"] * 2,
        *["ndarray 40 1152921504606846976"] * 2,
        "ndarray 28 1152921504606846976",
        "recarray 28 1152921504606846976",
        *["ndarray 8 1073741824"] * 2,
    ]


def test_scikit_learn_samples_and_pickles_criteria_as_natively(module_sandbox: BaseSandbox) -> None:
    """Positions in criteria have 64 bits in the pickle, and 32 in the code that loads them."""
    cell = """
import numpy as np, pickle
from sklearn.tree._criterion import Gini
print(type(pickle.loads(pickle.dumps(Gini(1, np.array([2]))))).__name__)
"""
    assert says(module_sandbox, cell) == "Gini"
    cell = (
        "from sklearn.utils.random import sample_without_replacement as sample\n"
        "for method in ('auto', 'tracking_selection', 'reservoir_sampling', 'pool'):\n"
        "    drawn = sample(1000, 5, method=method, random_state=3)\n"
        "    print(drawn.dtype, drawn.tolist())"
    )
    assert module_sandbox.execute(cell).stdout.splitlines() == [
        "int64 [874, 664, 249, 643, 952]",
        "int64 [874, 664, 249, 643, 952]",
        "int64 [831, 341, 115, 348, 271]",
        "int64 [874, 664, 249, 643, 952]",
    ]
