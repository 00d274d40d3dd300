"""Clients of well-known services, unmodified, against small stand-ins for these services.

Clients that %pip brings in are fetched from PyPI, in `make soak`.
"""

from __future__ import annotations

import ssl
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest

from tests.faces import says
from tests.network.servers import Server, serving, tls
from tests.network.services import Services
from wasm_kernel import ExecutionPolicy, create_sandbox
from wasm_kernel.network import upstream
from wasm_kernel.network_rules import NetworkRule
from wasm_kernel.service.sandbox import Sandbox

_NAMES = ("localhost", "raw.githubusercontent.com", "api.openml.org", "www.openml.org")
PACKAGES = "openai 'anthropic<1' 'pydantic<2' aiohttp boto3 httplib2"


class _Backend:
    """Connects to one server, whatever the address is."""

    def __init__(self, server: Server, backend: Any) -> None:
        self._port, self._backend = server.port, backend

    async def connect_tcp(self, _: str, __: int, timeout: float) -> Any:
        return await self._backend.connect_tcp("127.0.0.1", self._port, timeout=timeout)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all names lead to, with a certificate for them."""
    folder = tmp_path_factory.mktemp("tls")
    with serving(tls(folder, _NAMES), Services) as server, pytest.MonkeyPatch.context() as patch:

        async def found(*_: Any) -> list[str]:
            return ["127.0.0.1"]

        both = folder / "both.pem"  # pip uses the variable, too
        known = Path(ssl.get_default_verify_paths().cafile or certifi.where())
        both.write_bytes((folder / "ca.pem").read_bytes() + known.read_bytes())
        patch.setenv("REQUESTS_CA_BUNDLE", str(both))
        patch.setattr(upstream, "_addresses", found)
        patch.setattr(upstream, "_backend", _Backend(server, upstream._backend))
        upstream._tls_context.cache_clear()
        yield server
        upstream._tls_context.cache_clear()


@pytest.fixture(scope="module")
def reaching(services: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox that may reach these services; its cells know the server as S."""
    rules = [
        NetworkRule(name, ports=(443, services.port), addresses=("127.0.0.0/8",)) for name in _NAMES
    ]
    policy, workspace = ExecutionPolicy(network=rules), tmp_path_factory.mktemp("workspace")
    with create_sandbox(workspace=workspace, policy=policy, pip=True) as made:
        says(made, f"S = {services.url!r}\nasked = [{{'role': 'user', 'content': 'Hi'}}]")
        yield made


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(
            "import seaborn; print(seaborn.load_dataset('birds').eggs.sum())",
            "10",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "from sklearn.datasets import fetch_openml\n"
            "table = fetch_openml(data_id=7, parser='liac-arff').frame\n"
            "print(*table.x, *table.y)",
            "1.0 2.0 3.0 a b a",
            marks=pytest.mark.soak,
        ),
        (
            (
                "import pandas; print(pandas.read_html(S + '/table.html')[0].a[0])\n"
                "print(pandas.read_json(S + '/table.json').a[0])"
            ),
            "3\n3",
        ),
    ],
    ids=["seaborn", "sklearn", "pandas"],
)
def test_built_in_packages_fetch_their_data(reaching: Sandbox, code: str, expected: str) -> None:
    assert says(reaching, code) == expected


@pytest.fixture(scope="module")
def installed(reaching: Sandbox) -> Sandbox:
    """The sandbox with these clients, as %pip brings them in."""
    assert "Successfully installed" in says(reaching, f"%pip install {PACKAGES}")
    return reaching


_INSTALLED = {
    "openai": (
        """\
        import openai
        client = openai.OpenAI(base_url=S + "/v1", api_key="x")
        ask = client.chat.completions.create
        print(ask(model="m", messages=asked).choices[0].message.content)
        for chunk in ask(model="m", messages=asked, stream=True):
            print(chunk.choices[0].delta.content)
        """,
        "Good day\nGood \nday\nNone",
    ),
    "openai, a model from its parts": (
        """\
        import openai, pydantic
        class Nest(pydantic.BaseModel):
            eggs: list[int]
        client = openai.OpenAI(base_url=S + "/v1", api_key="x")
        with client.chat.completions.stream(
            model="m", messages=asked, response_format=Nest
        ) as parts:
            print(*(part.parsed for part in parts if part.type.startswith("content")), sep="\\n")
        """,
        "None\n{'eggs': [3]}\n{'eggs': [3, 7]}\neggs=[3, 7]",
    ),
    "anthropic": (
        """\
        import anthropic
        client = anthropic.Anthropic(base_url=S, api_key="x")
        with client.messages.stream(model="m", max_tokens=9, messages=asked) as parts:
            print(*parts.text_stream)
            print(parts.get_final_message().content[1].input)
        print(client.messages.create(model="m", max_tokens=9, messages=asked).content[0].text)
        """,
        "Good  day\n{'eggs': [3, 7]}\nGood day",
    ),
    "aiohttp": (
        """\
        import aiohttp, asyncio
        async def size(client):
            async with client.get(S + "/zeros/100000") as answer:
                return len(await answer.read())
        async with aiohttp.ClientSession() as client:
            print(sum(await asyncio.gather(*[size(client) for _ in range(10)])))
            async with client.post(S, data=bytes(300_000)) as answer:
                print(await answer.text())
        """,
        "1000000\n300000",
    ),
    "boto3": (
        """\
        import boto3
        s3 = boto3.client(
            "s3", endpoint_url=S, region_name="us-east-1",
            aws_access_key_id="a", aws_secret_access_key="b",
        )
        s3.put_object(Bucket="b", Key="k", Body=b"hello" * 100_000)
        print(len(s3.get_object(Bucket="b", Key="k")["Body"].read()))
        open("sent", "wb").write(bytes(100_000))
        s3.upload_file("sent", "b", "sent")
        s3.download_file("b", "sent", "got")
        print(len(open("got", "rb").read()))
        print([each["Key"] for each in s3.list_objects_v2(Bucket="b")["Contents"]])
        try:
            s3.get_object(Bucket="b", Key="none")
        except s3.exceptions.NoSuchKey:
            print("none")
        """,
        "500000\n100000\n['k', 'sent']\nnone",
    ),
    "httplib2": ("import httplib2; print(httplib2.Http().request(S + '/csv')[1][:3])", "b'a,b'"),
}


@pytest.mark.soak
@pytest.mark.parametrize("client", _INSTALLED)
def test_a_client_that_pip_installs_works(installed: Sandbox, client: str) -> None:
    code, expected = _INSTALLED[client]
    assert says(installed, textwrap.dedent(code)) == expected


@pytest.mark.soak
def test_pip_says_how_clients_of_ai_services_come_in(reaching: Sandbox) -> None:
    error = reaching.execute("%pip install openai==3.57.0 pydantic==2.14.4").stderr
    assert "pydantic-core needs compiled code" in error
    assert "name 'pydantic<2' in the same %pip install" in error
