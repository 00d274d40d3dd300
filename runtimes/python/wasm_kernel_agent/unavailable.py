"""Packages that can't work here, and their substitutes: for errors of imports and of `%pip`."""

from __future__ import annotations

import re
import sys

_PARQUET = (
    "pandas.read_parquet, DataFrame.to_parquet, read_feather and to_feather work here without it, "
    "and so do CSV, Excel, JSON, SQLite and pickle. ORC can't be read: convert such files outside, "
    "for example with pandas.read_orc('a.orc').to_parquet('a.parquet')"
)
_TREES = "scikit-learn's HistGradientBoostingClassifier and HistGradientBoostingRegressor"
_NETS = "scikit-learn's MLPClassifier and MLPRegressor train small networks; numpy does the rest"
_ARRAYS = "plain numpy does the same, more slowly: leave the decorator out"
_TEXTS = "scikit-learn's TfidfVectorizer, re and regex; nltk is pure Python"
_PICTURES = "Pillow (PIL), scipy.ndimage"
_MAPS = "no map package is built in; matplotlib draws coordinates"
_FASTER_JSON = "json"
_NUMBERS = "numpy.savez, and pickle (DataFrame.to_pickle)"
_HDF5_READER = "{} is read by pyfive (%pip install 'pyfive<0.6', pyfive.File(open(name, 'rb')))"
_HDF5 = f"{_NUMBERS}. {_HDF5_READER.format('HDF5')}"
_PACKED = "gzip, bz2 and lzma (.gz, .bz2, .xz, .zip); unpack a .zst file outside, with zstd -d"
_SHEETS = "openpyxl and xlrd, which pandas.read_excel takes by itself: leave engine out"
_SQL = "sqlite3 with DataFrame.to_sql and pandas.read_sql for SQL, pandas for files"
_MANY = "pandas in this one process"
_MODELS = "pydantic's version 1, which is pure Python: name 'pydantic<2' in the same %pip install"
_SOUNDS = "scipy.io.wavfile and scipy.signal"
_PDF = "pypdf, which is built in"
_APPS = "ipywidgets, which are built in"
_PROFILES = "%prun and cProfile"
_DIGESTS = "hashlib, hmac and secrets"
_FORECASTS = "statsmodels' SARIMAX and ExponentialSmoothing"

STAND_INS = {
    **dict.fromkeys(("pyarrow", "fastparquet"), _PARQUET),
    "polars": "pandas, or narwhals on top of it, which has much of polars' API",
    "duckdb": _SQL,
    **dict.fromkeys(("xgboost", "lightgbm", "catboost"), _TREES),
    **dict.fromkeys(
        ("torch", "torchvision", "tensorflow", "keras", "jax", "jaxlib", "lightning"), _NETS
    ),
    **dict.fromkeys(("numba", "cupy", "numexpr", "bottleneck"), _ARRAYS),
    **dict.fromkeys(
        ("spacy", "gensim", "transformers", "tokenizers", "sentence_transformers"), _TEXTS
    ),
    **dict.fromkeys(("cv2", "skimage"), _PICTURES),
    **dict.fromkeys(("geopandas", "shapely", "pyproj", "cartopy", "rasterio", "fiona"), _MAPS),
    **dict.fromkeys(("orjson", "ujson", "simdjson"), _FASTER_JSON),
    **dict.fromkeys(("h5py", "tables", "pytables"), _HDF5),
    "zarr": _NUMBERS,
    **dict.fromkeys(("zstandard", "_zstd", "lz4"), _PACKED),
    **dict.fromkeys(("python_calamine", "python-calamine"), _SHEETS),
    "netCDF4": "scipy.io.netcdf_file for NetCDF 3. " + _HDF5_READER.format("NetCDF 4"),
    "pyreadstat": "pandas.read_stata and pandas.read_sas, for files saved as Stata or SAS",
    **dict.fromkeys(("pyspark", "ray"), _MANY),
    **dict.fromkeys(("prophet", "pmdarima"), _FORECASTS),
    "shap": "sklearn.inspection.permutation_importance",
    "umap": "sklearn.manifold (TSNE, Isomap)",
    "hdbscan": "sklearn.cluster.HDBSCAN",
    "cvxpy": "scipy.optimize",
    "rapidfuzz": "difflib",
    "pydantic": _MODELS,
    "msgspec": "dataclasses and attrs",
    **dict.fromkeys(("cryptography", "Crypto", "xxhash"), _DIGESTS),
    "wordcloud": "a bar chart of collections.Counter, drawn by matplotlib",
    "ortools": "scipy.optimize (milp, linprog, linear_sum_assignment)",
    "faiss": "sklearn.neighbors.NearestNeighbors",
    **dict.fromkeys(("soundfile", "librosa"), _SOUNDS),
    **dict.fromkeys(("fitz", "pdfplumber"), _PDF),
    **dict.fromkeys(("streamlit", "gradio", "dash"), _APPS),
    **dict.fromkeys(("line_profiler", "pyinstrument"), _PROFILES),
    "memory_profiler": "tracemalloc, and %session_info for the memory",
    "pygame": "matplotlib's animations, shown by HTML(animation.to_jshtml())",
    "vl_convert": "chart.save('chart.html')",
    "bokeh": "matplotlib, and Plotly and Altair with %pip",
    "psutil": "%session_info for the memory, shutil.disk_usage and os.cpu_count",
}
"""Substitutes for packages that need compiled code, by the name that is imported."""

_PURE_NETWORK = {
    *("requests", "httpx", "urllib3", "httplib2", "websocket", "websockets", "paramiko", "boto3"),
    *("botocore", "s3fs", "gcsfs", "yfinance", "huggingface_hub", "pymysql", "pymongo", "redis"),
    *("aiohttp", "openai", "anthropic"),
}
_COMPILED_NETWORK = {"psycopg2", "MySQLdb", "grpc", "zmq"}

PACKAGES = {  # modules whose package has another name
    "Crypto": "pycryptodome",
    "MySQLdb": "mysqlclient",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "fpdf": "fpdf2",
    "git": "GitPython",
    "grpc": "grpcio",
    "imblearn": "imbalanced-learn",
    "jwt": "PyJWT",
    "pkg_resources": "setuptools",
    "pptx": "python-pptx",
    "skimage": "scikit-image",
    "slugify": "python-slugify",
    "umap": "umap-learn",
    "vl_convert": "vl-convert-python",
    "websocket": "websocket-client",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}

_COMPILED = "{name} needs compiled code, and is not among what is built in; %pip can't bring it in."
_INSTEAD = " In its place: {stand_in}."
_NETWORK = (
    "{name} speaks to other machines, and the sandbox has no network: bring the data in as a file."
)
_ONLY_IMPORTED = " For code that merely imports it, %pip install {package} brings it in."
_PACKAGE = (
    "{name} is not built in. If it is a file of yours, put it beside the notebook (or into /app) "
    "first. If it is the package {package}, and pure Python, %pip install {package} brings it "
    "in where this kernel allows %pip."
)
_SCRIPTED = (
    "ipympl draws by a script in the page, and by a part of matplotlib that is not built in. In "
    "its place: %matplotlib inline; for figures that answer, Plotly and Altair (%pip install)."
)
_OPEN_DOCUMENT = (
    "OpenDocument (.ods) can't be read or written here: odfpy has no wheel, so %pip can't bring it "
    "in. Save the file as .xlsx outside, which pandas.read_excel and to_excel take."
)
_GOOGLE = (
    "google.colab is in Google's Colab only. Here cells read the files beside the notebook by "
    "their names, and %session_publish copies results there. Google's packages have names of "
    "their own, such as protobuf."
)
_NO_FONTS = (
    "Pillow can't read fonts here. ImageFont.load_default() without a size is its small built-in "
    "font; matplotlib's figure.text draws in other sizes and fonts."
)
_NO_PROFILES = (
    "Pillow can't convert colours by ICC profiles here. It reads and writes the profiles "
    "themselves, as info['icc_profile'] and save(..., icc_profile=...)."
)
_NO_WINDOWS = (
    "{name} opens windows, and the sandbox has none. In its place: ipywidgets for forms, "
    "matplotlib for drawings."
)
_FORMER = (
    "{name} was a part of Python before 3.13, and is not in the newer one that runs here. "
    "%pip install standard-{name} brings it back, if that package exists and is pure Python."
)
_PIP_HERE = (
    "Packages belong to the session, and pip runs beside the kernel: %pip install NAME, on a line "
    "of its own in the cell, brings one in."
)
_NOT_HERE = {
    **dict.fromkeys(("pip", "venv", "ensurepip", "virtualenv"), _PIP_HERE),
    **{
        name: _FORMER.format(name=name)
        for name in (
            *(
                "aifc",
                "asynchat",
                "asyncore",
                "audioop",
                "cgi",
                "cgitb",
                "chunk",
                "crypt",
                "distutils",
            ),
            *(
                "imghdr",
                "imp",
                "mailcap",
                "nntplib",
                "pipes",
                "smtpd",
                "sndhdr",
                "sunau",
                "telnetlib",
            ),
            *("lib2to3", "uu", "xdrlib"),
        )
    },
}
_SENTENCES = {
    "ipympl": _SCRIPTED,
    **{name: _NO_WINDOWS.format(name=name) for name in ("tkinter", "_tkinter")},
    "imagingft": _NO_FONTS,
    "imagingcms": _NO_PROFILES,
    **dict.fromkeys(("odf", "odfpy"), _OPEN_DOCUMENT),
}
_PLATFORM = "{name} belongs to an operating system; the sandbox has none."
_WORD = re.compile(r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*")


def advice_on_module(name: str) -> str:
    """Returns advice about a module that is not there."""
    if name == "google":
        return _GOOGLE
    if sentence := _SENTENCES.get(name, _NOT_HERE.get(name)):
        return sentence
    if name in STAND_INS:
        return _COMPILED.format(name=name) + _INSTEAD.format(stand_in=STAND_INS[name])
    if name in sys.stdlib_module_names:
        return _PLATFORM.format(name=name)
    package = PACKAGES.get(name, name)
    if name in _COMPILED_NETWORK:
        return _NETWORK.format(name=name)
    words = _NETWORK + _ONLY_IMPORTED if name in _PURE_NETWORK else _PACKAGE
    return words.format(name=name, package=package)


def advice_on_packages(text: str) -> str:
    """Returns the substitutes of the packages that a text names; empty if none is known."""
    modules = {_canonical(PACKAGES.get(name, name)): name for name in STAND_INS}
    found = [modules.get(_canonical(word)) for word in _WORD.findall(text)]
    return "".join(f" In place of {n}: {STAND_INS[n]}." for n in dict.fromkeys(found) if n)


def advice_on_import_error(text: str) -> str:
    """Returns the substitute of the package that an `ImportError` of another package names.

    pandas raises one of these for an optional dependency, such as pyarrow in `read_parquet`.
    """
    words = (word.partition(".")[0] for word in _WORD.findall(text))  # such as pyarrow.orc
    named = next((word for word in words if word in STAND_INS or word in _SENTENCES), None)
    return "" if named is None else advice_on_module(named)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
