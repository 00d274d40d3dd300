"""Changes to packages when a cell imports them: their figures, and gaps of their compiled code."""

from __future__ import annotations

import _thread
import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from wasm_kernel_agent import inline_figures, pools
from wasm_kernel_agent.animations import keep_a_picture

Change = Callable[[ModuleType], None]

_VEGALITE = "application/vnd.vegalite.v5+json"  # the newest version that JupyterLab draws
_NO_VEGALITE = (
    "[wasm-kernel] This is an Altair chart, and this front end has no renderer for it. "
    "JupyterLab has."
)
_PLOTLY = "plotly_mimetype"
_NO_PLOTLY = (
    "[wasm-kernel] This is a Plotly figure, and this front end has no renderer for it. Run "
    "pip install 'wasm-kernel[plots]' where JupyterLab is installed, and reload its page."
)


class ChangedLoader(Loader):
    """Loads a module as its own loader does, and then changes it."""

    def __init__(self, loader: Any, change: Change) -> None:
        self._loader = loader
        self._change = change

    def __getattr__(self, name: str) -> Any:
        """Asks the module's own loader, for example for data files beside the module."""
        return getattr(vars(self).get("_loader"), name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module, as its own loader makes it."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module and changes it. The module never sees this loader."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            self._change(module)
        except Exception:  # another version of the package: it is left unchanged
            return


class ChangingFinder(MetaPathFinder):
    """Finds the modules that are changed, through the other finders."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with a loader that changes it; None for all other modules."""
        change = self._changes.get(fullname)
        if change is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                spec.loader = ChangedLoader(spec.loader, change)
                return spec
        return None


def install() -> None:
    """Changes packages when they are imported from now on."""
    os.environ["MPLBACKEND"] = inline_figures.BACKEND
    sys.meta_path.insert(0, ChangingFinder(CHANGES))


def agents(module: str, name: str) -> Callable[..., Any]:
    """Returns a function of the agent's, whose module is imported when it is first called."""

    def call(*args: Any, **settings: Any) -> Any:
        return getattr(importlib.import_module(f"wasm_kernel_agent.{module}"), name)(
            *args, **settings
        )

    return call


def complete_numpy(_: ModuleType) -> None:
    """Lets numpy's names mean the types that its compiled code uses, and arrays use files."""
    for name in ("numpy_types", "numpy_files"):
        module: Any = importlib.import_module(f"wasm_kernel_agent.{name}")
        module.install()


def name_int32(aliases: ModuleType) -> None:
    """Lets the name `int32` mean the type that it means elsewhere."""
    aliases_: Any = aliases
    for names in (aliases_.allTypes, aliases_.sctypeDict):
        names["int32"] = names["intc"]


def widening(name: str, place: int = 0, wider: str = "widen") -> Change:
    """Lets a function of a module keep positions as int64, as it does elsewhere."""

    def change(module: Any) -> None:
        numpy_types: Any = importlib.import_module("wasm_kernel_agent.numpy_types")
        *owners, function = name.split(".")
        for owner in owners:
            module = getattr(module, owner)
        numpy_types.widen_argument(module, function, place, getattr(numpy_types, wider))

    return change


def name_the_fields_of_trees(module: Any) -> None:
    """Gives fields of scikit-learn's trees the type `numpy.intp`, which their type only equals."""
    numpy: Any = importlib.import_module("numpy")
    node = module.NODE_DTYPE
    kinds = [numpy.intp if node[name] == numpy.intp else node[name] for name in node.names]
    places = [node.fields[name][1] for name in node.names]
    module.NODE_DTYPE = numpy.dtype(
        {"names": node.names, "formats": kinds, "offsets": places, "itemsize": node.itemsize}
    )


def lock_quickly(bits: Any) -> None:
    """Gives generators CPython's own lock, which is faster: no thread waits while it is taken."""
    bits.RLock = _thread.RLock


def start_no_monitor(tqdm: Any) -> None:
    """Lets tqdm do without its monitor, which would be a thread."""
    tqdm.tqdm.monitor_interval = 0


def show_vegalite(altair: ModuleType) -> None:
    """Lets Altair send its charts as data, and not as a page with a script."""
    renderers: Any = altair.renderers

    def as_data(spec: Any, **options: Any) -> Any:
        bundle = {_VEGALITE: spec, "text/plain": _NO_VEGALITE}
        return bundle, ({_VEGALITE: options} if options else {})

    for name in ("mimetype", "jupyterlab", "nteract"):
        renderers.register(name, as_data)
    renderers.enable("mimetype")


def name_plotlys_renderer(base: ModuleType) -> None:
    """Lets Plotly's figures name a renderer as text, for front ends that draw none."""
    renderer: Any = base.PlotlyRenderer
    original = renderer.to_mimebundle
    renderer.to_mimebundle = lambda *given: {**original(*given), "text/plain": _NO_PLOTLY}


def show_plotly(module: ModuleType) -> None:
    """Lets Plotly send its figures as data alone; older versions add a page with a script."""
    renderers: Any = module.renderers
    if renderers.default == f"{_PLOTLY}+notebook":
        renderers.default = _PLOTLY


def take_wide_hierarchies(module: ModuleType) -> None:
    """Lets scikit-learn cut a hierarchy of clusters that was pickled where positions are wider."""
    trees: Any = module
    original, kind = trees.labelling_at_cut, trees.HIERARCHY_dtype
    trees.labelling_at_cut = lambda hierarchy, *rest: original(
        hierarchy.astype(kind, copy=False), *rest
    )


def keep_wide_hierarchies(module: ModuleType) -> None:
    """Lets HDBSCAN pickle its hierarchy in the form that compiled code elsewhere takes."""
    models: Any = module
    numpy_types: Any = importlib.import_module("wasm_kernel_agent.numpy_types")
    get_state = models.HDBSCAN.__getstate__
    models.HDBSCAN.__getstate__ = lambda model: {
        name: numpy_types.widen_to_keep(each) for name, each in get_state(model).items()
    }


def take_wide_peaks(module: ModuleType) -> None:
    """Lets scipy take peaks as numpy's default integers, which are wider than positions here."""
    finding: Any = module
    original = finding._arg_peaks_as_expected

    def as_expected(value: Any) -> Any:
        peaks = finding.np.asarray(value)
        if peaks.dtype == finding.np.int64:
            positions = peaks.astype(finding.np.intp)
            value = positions if (positions == peaks).all() else value
        return original(value)

    finding._arg_peaks_as_expected = as_expected


def sample_by_positions(module: Any) -> None:
    """Lets scikit-learn sample without replacement.

    Its compiled code takes numpy's default integers for C's, or for positions where they are the
    same. So numpy looks to it as if they were.
    """
    numpy: Any = importlib.import_module("numpy")
    numpy_types: Any = importlib.import_module("wasm_kernel_agent.numpy_types")
    original = module.sample_without_replacement

    class Numpy:
        int_ = numpy.intp

        def __getattr__(self, name: str) -> Any:
            return getattr(numpy, name)

        def empty(self, shape: Any, dtype: Any = float) -> Any:
            return numpy.empty(shape, numpy.intp if dtype is int else dtype)

    @functools.wraps(original)
    def sample(*args: Any, **settings: Any) -> Any:
        return numpy_types.widen(original(*args, **settings))

    module.np, module.sample_without_replacement = Numpy(), sample


def take_orders_as_int32(module: ModuleType) -> None:
    """Lets scipy's functions take orders of any integer type: their loops take 32 bits.

    Polynomials would take others as floats, and be far off for large orders.
    """
    numpy: Any = importlib.import_module("numpy")

    def as_int32(orders: Any) -> Any:
        held = orders if hasattr(orders, "astype") else numpy.asarray(orders)
        numpy.asarray(held).astype(numpy.intp, casting="same_kind")  # refuses what does not fit
        return held.astype(numpy.int32)

    def narrowing(original: Any) -> Callable[..., Any]:
        kinds = original.types[0]
        takes_floats = not all("l" in each for each in original.types)

        def narrowed(kind: str, given: Any) -> Any:
            whole = numpy.can_cast(numpy.asarray(given).dtype, numpy.int64)
            return as_int32(given) if kind == "l" and (whole or not takes_floats) else given

        @functools.wraps(original)
        def call(*args: Any, **settings: Any) -> Any:
            narrow = [narrowed(kind, each) for each, kind in zip(args, kinds, strict=False)]
            return original(*narrow, *args[len(narrow) :], **settings)

        return call

    for name, function in list(vars(module).items()):
        if isinstance(function, numpy.ufunc) and (
            name.startswith("eval_") or all("l" in kinds for kinds in function.types)
        ):
            setattr(module, name, narrowing(function))


def check_indexes_of_lists(module: ModuleType) -> None:
    """Lets scipy's arrays of lists refuse an index beyond 32 bits, which would be cut off."""
    numpy: Any = importlib.import_module("numpy")
    changed: Any = module

    def checking(original: Callable[..., Any], rows: int) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            indexes = [numpy.asarray(each).astype(numpy.intp) for each in args[rows : rows + 2]]
            return original(*args[:rows], *indexes, *args[rows + 2 :])

        return call

    changed.lil_fancy_get = checking(changed.lil_fancy_get, 6)
    changed.lil_fancy_set = checking(changed.lil_fancy_set, 4)


def refuse_large_tables(module: Any) -> None:
    """Lets scipy's random tables refuse a total beyond 32 bits, of which its loop would trap."""
    tables = module.random_table_gen

    def checking(original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(row: Any, col: Any, total: int, *args: Any) -> Any:
            if total > sys.maxsize:
                raise ValueError(f"a random table has a total of at most {sys.maxsize} here")
            return original(row, col, total, *args)

        return draw

    for name in ("_rvs_boyett", "_rvs_patefield"):
        setattr(tables, name, staticmethod(checking(getattr(tables, name))))


class _NoMemo(dict[int, Any]):
    """A cache that keeps nothing."""

    def __setitem__(self, key: int, value: Any) -> None:
        """Keeps nothing."""


def tell_positions_from_int32(module: ModuleType) -> None:
    """Lets scipy's sparse arrays be of int64 in place of positions.

    It also looks up the common type of two types each time: its cache uses the hash of types, and
    positions and `int32` have the same hash, since they are equal.
    """
    types: Any = module
    types._upcast_memo = _NoMemo()
    types.getdtype = _without_positions(types.getdtype)


def downcast_to_no_positions(numeric: Any) -> None:
    """Lets `to_numeric(downcast=...)` try no positions, which refuse what does not fit them."""
    downcast = numeric.maybe_downcast_numeric
    numeric.maybe_downcast_numeric = lambda values, dtype: (
        values if dtype.char in "lL" else downcast(values, dtype)
    )


def read_positions_as_int64(module: ModuleType) -> None:
    """Lets pandas take `np.intp` as int64: its columns and indexes hold no positions."""
    types: Any = module
    types.pandas_dtype = _without_positions(types.pandas_dtype)
    types.infer_dtype_from_object = _without_positions(types.infer_dtype_from_object)


def _without_positions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that gives a type or its class, and int64 in place of positions."""
    numpy: Any = importlib.import_module("numpy")
    numpy_types: Any = importlib.import_module("wasm_kernel_agent.numpy_types")
    positions, wide = numpy.dtype(numpy.intp), numpy.dtype(numpy.int64)

    @functools.wraps(original)
    def type_of(*args: Any, **settings: Any) -> Any:
        given = original(*args, **settings)
        if given is positions.type:
            return wide.type
        return wide if given is positions else given

    replaced: Callable[..., Any] = numpy_types.in_place_of(original, type_of)
    return replaced


def widen_sparse_data(module: Any) -> None:
    """Lets scipy's sparse arrays hold positions as int64: their compiled code adds up numbers of
    equal places.
    """
    numpy_types: Any = importlib.import_module("wasm_kernel_agent.numpy_types")

    def widening_data(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(self: Any, *args: Any, **settings: Any) -> None:
            original(self, *args, **settings)
            self.data = numpy_types.widen(self.data)

        return init

    for kind in (
        module._coo._coo_base,
        module._compressed._cs_matrix,
        module._bsr._bsr_base,
        module._dia._dia_base,
    ):
        kind.__init__ = widening_data(kind.__init__)


def decode_jpeg(_: ModuleType) -> None:
    """Lets Pillow read and write JPEG by a codec."""
    image: Any = importlib.import_module("PIL.Image")

    image.register_decoder("jpeg", agents("codecs.pictures", "JpegDecoder"))
    image.register_encoder("jpeg", agents("codecs.pictures", "JpegEncoder"))


def decode_webp(plugin: Any) -> None:
    """Lets Pillow read and write WebP by a codec."""
    image: Any = importlib.import_module("PIL.Image")
    plugin._webp = pictures = importlib.import_module("wasm_kernel_agent.codecs.pictures")
    plugin._save = pictures.save_webp
    plugin.SUPPORTED = True
    image.register_save("WEBP", pictures.save_webp)
    image.register_save_all("WEBP", plugin._save_all)
    image.register_extension("WEBP", ".webp")
    image.register_mime("WEBP", "image/webp")


def name_picture_codecs(features: Any) -> None:
    """Lets Pillow say that it reads and writes JPEG and WebP; their codecs name no version."""

    def change(kind: str, feature: str) -> None:
        check, version = (getattr(features, f"{each}_{kind}") for each in ("check", "version"))
        setattr(features, f"check_{kind}", lambda name: name == feature or check(name))
        setattr(
            features, f"version_{kind}", lambda name: None if name == feature else version(name)
        )

    change("codec", "jpg")
    change("module", "webp")
    features.Image.core.__file__ = features.Image.__file__  # Pillow's reports name it


def read_parquet(module: Any) -> None:
    """Lets pandas find an engine for Parquet, which is imported when it is first used."""
    module.PyArrowImpl = agents("codecs.parquet", "Engine")


def read_feather(module: Any) -> None:
    """Lets pandas read and write Feather by code that is imported when it is first used."""
    for name in ("read_feather", "to_feather"):
        changed = functools.wraps(getattr(module, name))(agents("codecs.feather", name))
        setattr(module, name, changed)


def capture_streams(module: Any) -> None:
    """Lets pytest capture `sys.stdout` and `sys.stderr`: WASI can't duplicate descriptors."""
    module.FDCapture, module.FDCaptureBinary = module.SysCapture, module.SysCaptureBinary


def know_no_users(module: Any) -> None:
    """Lets pytest make its temporary folders as on systems without users."""
    module.get_user_id = lambda: None


def dump_no_stack(module: Any) -> None:
    """Lets pytest do without `faulthandler`, for which it duplicates a descriptor."""
    del module.pytest_configure


CHANGES: dict[str, Change] = {
    "PIL.JpegImagePlugin": decode_jpeg,
    "PIL.WebPImagePlugin": decode_webp,
    "PIL.features": name_picture_codecs,
    "_pytest.capture": capture_streams,
    "_pytest.compat": know_no_users,
    "_pytest.faulthandler": dump_no_stack,
    "altair": show_vegalite,
    "matplotlib": inline_figures.return_inline,
    "matplotlib.animation": keep_a_picture,
    "matplotlib.backends.registry": inline_figures.know_backend,
    "matplotlib.pyplot": inline_figures.show_below_cells,
    "mmap": agents("mapped_files", "install"),
    "multiprocessing.pool": pools.make_calls_at_once,
    "numpy": complete_numpy,
    "numpy._core._type_aliases": name_int32,
    "numpy.random.bit_generator": lock_quickly,
    "joblib.numpy_pickle": widening("NumpyPickler.save", 1, "widen_to_keep"),
    "numpy.ma.core": widening("MaskedArray.filled", 0, "widen_masked"),
    "numpy.lib._format_impl": widening("write_array", 1, "widen_to_keep"),
    "pandas._libs.tslibs.period": agents("time_formats", "refuse_for_periods"),
    "pandas.core.algorithms": widening("_ensure_data"),
    "pandas.core.construction": widening("sanitize_array"),
    "pandas.core.dtypes.common": read_positions_as_int64,
    "pandas.core.indexes.base": agents("numpy_types", "widen_indexes"),
    "pandas.core.internals.blocks": widening("maybe_coerce_values"),
    "pandas.core.tools.numeric": downcast_to_no_positions,
    "pandas.io.feather_format": read_feather,
    "pandas.io.parquet": read_parquet,
    "plotly.io._base_renderers": name_plotlys_renderer,
    "plotly.io._renderers": show_plotly,
    "scipy.io.matlab._mio5": widening("to_writeable", 0, "widen_to_keep"),
    "scipy.ndimage._filters": widening("_min_or_max_filter"),
    "scipy.ndimage._ni_support": widening("_get_output", 1),
    "scipy.signal._peak_finding": take_wide_peaks,
    "scipy.sparse": widen_sparse_data,
    "scipy.sparse._csparsetools": check_indexes_of_lists,
    "scipy.sparse.csgraph._laplacian": widening("laplacian"),
    "scipy.sparse._sputils": tell_positions_from_int32,
    "scipy.special._ufuncs": take_orders_as_int32,
    "scipy.stats._multivariate": refuse_large_tables,
    "scipy.spatial._ckdtree": agents("neighbour_trees", "widen_trees_of_scipy"),
    "sklearn.cluster._hdbscan.hdbscan": keep_wide_hierarchies,
    "sklearn.cluster._hdbscan._tree": take_wide_hierarchies,
    "sklearn.neighbors._ball_tree": agents("neighbour_trees", "widen_trees_of_sklearn"),
    "sklearn.neighbors._kd_tree": agents("neighbour_trees", "widen_trees_of_sklearn"),
    "sklearn.tree._tree": name_the_fields_of_trees,
    "sklearn.utils._random": sample_by_positions,
    "tqdm": start_no_monitor,
}
"""The modules that are changed once they have been imported."""
