"""The rows of `docs/formats.md` that need no codec, with files of other programs (`tables/`)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from wasm_kernel import BaseSandbox, create_sandbox

FILES = Path(__file__).parent / "tables"
FOLDERS = (FILES,)
SETUP = """
import io
import numpy as np, pandas as pd
"""


def said(sandbox: BaseSandbox, code: str) -> str:
    """Returns the text that a cell prints, or its error with the hint."""
    result = sandbox.execute(code)
    if result.error is None:
        return result.stdout.strip()
    return "".join(result.error.traceback)


FRAME = 'df = pd.DataFrame({"n": [1, 2], "t": ["a", "ü"], "d": pd.to_datetime(["2020", "2021"])})\n'
READ = {
    "xls": (
        "df = pd.read_excel('dates.xls'); print(len(df), df.iloc[:3, 1].astype(str).tolist())",
        "9 ['2005-02-23 00:00:00', '1988-05-03 00:00:00', '06:34:00']",
    ),
    "sas7bdat": (
        "df = pd.read_sas('sample.sas7bdat.gz'); print(df.mynum[1], df.mydate[1])",
        "1.2 1880-05-06 00:00:00",
    ),
    "xpt": ("print(pd.read_sas('sample.xpt').MYNUM.tolist()[:3])", "[1.1, 1.2, -1000.3]"),
    "dta": (
        "df = pd.read_stata('sample.dta'); print(df.mylabl.tolist()[:2], df.dtime[1])",
        "['Male', 'Female'] 1880-05-06 10:10:10",
    ),
    "NetCDF 3": (
        (
            "from scipy.io import netcdf_file\n"
            "print(netcdf_file('classic.nc', version=2).variables['v'].data)"
        ),
        "[1 2 3]",
    ),
}
WRITTEN = {
    "xlsx": "df.to_excel('x.xlsx', index=False); back = pd.read_excel('x.xlsx')",
    "xlsx by openpyxl": "df.to_excel('o.xlsx', engine='openpyxl', index=False)\n"
    "back = pd.read_excel('o.xlsx')",
    "HTML": "back = pd.read_html(io.StringIO(df.to_html(index=False)))[0]",
    "HTML by bs4": "back = pd.read_html(io.StringIO(df.to_html(index=False)), flavor='bs4')[0]",
    "XML": "df.to_xml('x.xml', index=False); back = pd.read_xml('x.xml')",
    "Stata": "df.to_stata('s.dta', write_index=False, version=118); back = pd.read_stata('s.dta')",
}
NUMBERS = {
    "raw numbers": "a.tofile('raw.bin'); back = np.fromfile('raw.bin', a.dtype)",
    "within a file": "with open('in.bin', 'wb') as f:\n"
    "    f.write(b'head'); a.tofile(f); f.write(b'end')\n"
    "with open('in.bin', 'rb') as f:\n"
    "    f.read(4); back = np.fromfile(f, a.dtype, len(a)); assert f.read() == b'end'",
    "numbers as text": "a.tofile('n.txt', sep=' '); back = np.fromfile('n.txt', a.dtype, sep=' ')",
    "some of them": "a.tofile('s.bin'); back = np.fromfile('s.bin', a.dtype, count=2, offset=4)\n"
    "a = a[2:4]",
    "WAV": "from scipy.io import wavfile\n"
    "wavfile.write('a.wav', 8000, a); rate, back = wavfile.read('a.wav')",
    "Fortran": "from scipy.io import FortranFile\n"
    "with FortranFile('f.unf', 'w') as f: f.write_record(a)\n"
    "with FortranFile('f.unf') as f: back = f.read_record(a.dtype)",
    "MATLAB": "from scipy.io import savemat, loadmat\n"
    "savemat('m.mat', {'a': a}); back = loadmat('m.mat')['a'][0]",
    "mapped": "np.save('m.npy', a); back = np.load('m.npy', mmap_mode='r')\n"
    "assert not back.flags.writeable; np.load('m.npy', mmap_mode='c')[0] = 99",
    "NumPy": "np.savez('z.npz', a=a); back = np.load('z.npz')['a']",
}
REFUSED = {
    "pd.read_spss('sample.sav')": "pandas.read_stata and pandas.read_sas",
    "pd.read_hdf('data.h5')": "pyfive",
    "pd.read_excel('sample.ods')": "Save the file as .xlsx",
    "pd.read_csv('x.csv.zst')": "zstd -d",
    "pd.read_excel('sample.xlsb')": "pyxlsb",
    "pd.read_orc('x.orc')": "ORC can't be read",
    "from PIL import ImageFont; ImageFont.truetype('x.ttf')": "ImageFont.load_default()",
    "from PIL import ImageCms; ImageCms.createProfile('sRGB')": "info['icc_profile']",
}


@pytest.mark.parametrize("name", READ)
def test_a_file_of_another_program_is_read(sandbox: BaseSandbox, name: str) -> None:
    code, wanted = READ[name]
    assert said(sandbox, code) == wanted


@pytest.mark.parametrize("name", WRITTEN)
def test_a_frame_is_written_and_read_again(sandbox: BaseSandbox, name: str) -> None:
    code = FRAME + WRITTEN[name] + "\nback['d'] = pd.to_datetime(back['d'])\n"
    code += "print([back[c].tolist() == df[c].tolist() for c in df])"
    assert said(sandbox, code) == "[True, True, True]"


def test_numbers_are_written_and_read_again(sandbox: BaseSandbox) -> None:
    for name, written in NUMBERS.items():
        code = f"a = np.arange(-2, 5, dtype='int16')\n{written}\n"
        code += "print(back.dtype, np.array_equal(back, a), back.flags.writeable)"
        assert said(sandbox, code).startswith("int16 True"), name


@pytest.mark.parametrize("code", REFUSED)
def test_formats_that_are_not_there_say_what_to_do(sandbox: BaseSandbox, code: str) -> None:
    assert REFUSED[code] in said(sandbox, code)


@pytest.mark.soak
def test_packages_that_pip_brings_in_read_further_formats(tmp_path: Path) -> None:
    with create_sandbox(workspace=tmp_path, pip=True) as sandbox:
        for name in ("sample.xlsb", "data.h5"):
            shutil.copy(FILES / name, tmp_path)
        sandbox.execute("%pip install pyxlsb 'pyfive<0.6'\nimport pandas as pd, pyfive")
        code = "print(pd.read_excel('sample.xlsb').columns.tolist())\n"
        code += "print(pyfive.File(open('data.h5', 'rb'))['packed'][-2:].tolist())"
        assert said(sandbox, code) == "[41286]\n[998, 999]"
