"""HTTPS: certificates are verified, and a proxy tunnels encrypted requests."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from crossknn.errors import ScorerError
from crossknn.scorers.remote.scorer import RemoteScorer
from tests.scorers.remote.rerank_server import lengths, serving

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A file with a key and its own certificate, for this machine and for rerank.example."""
    folder = tmp_path_factory.mktemp("tls")
    key, made = folder / "key.pem", folder / "certificate.pem"
    names = "subjectAltName=DNS:localhost,DNS:rerank.example"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext {names}"
    subprocess.run([*command.split(), "-keyout", key, "-out", made], check=True, capture_output=True)
    made.write_bytes(made.read_bytes() + key.read_bytes())
    return made


@pytest.fixture
def server(certificate):
    with serving() as one:
        one.socket = server_context(certificate).wrap_socket(one.socket, server_side=True)
        yield one


def server_context(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def score(scorer, queries, items):
    return scorer.score(queries, items)


def await_score(scorer, queries, items):
    return asyncio.run(scorer.ascore(queries, items))


both = pytest.mark.parametrize("run", [score, await_score])


@both
def test_an_untrusted_certificate_is_an_error_at_once(run, server, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(ScorerError, match=r"cannot be reached: .*CERTIFICATE_VERIFY_FAILED") as raised:
        run(RemoteScorer(f"https://localhost:{server.server_port}/rerank", api_key="secret"), ["q"], ["a"])
    assert "attempts" not in str(raised.value)
    assert not server.bodies


@both
def test_a_trusted_certificate_is_accepted(run, server, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    scorer = RemoteScorer(f"https://localhost:{server.server_port}/rerank")
    for _ in range(2):
        assert run(scorer, ["q"], ["abc"]).tolist() == pytest.approx(lengths("q", ["abc"]), rel=1e-5)
    assert server.connections == (1 if run is score else 2)  # a connection ends with its event loop


class Tunnel(BaseHTTPRequestHandler):
    """A proxy that connects to one port of this machine, whatever it is asked for."""

    def do_CONNECT(self):
        self.server.asked.append((self.path, self.headers["proxy-authorization"]))
        self.send_response(200)
        self.end_headers()
        with socket.create_connection(("127.0.0.1", self.server.port)) as there:
            back = threading.Thread(target=self.copy, args=(there, self.connection), daemon=True)
            back.start()
            self.copy(self.connection, there)
            back.join()
        self.close_connection = True

    def copy(self, source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def log_message(self, format, *args):
        pass


@both
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_https_through_a_proxy_of_the_environment(run, server, certificate, monkeypatch, scheme):
    with ThreadingHTTPServer(("127.0.0.1", 0), Tunnel) as proxy:
        proxy.daemon_threads, proxy.block_on_close = True, False
        proxy.asked, proxy.port = [], server.server_port
        if scheme == "https":
            proxy.socket = server_context(certificate).wrap_socket(proxy.socket, server_side=True)
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        monkeypatch.setenv("https_proxy", f"{scheme}://me:pass@localhost:{proxy.server_port}")
        monkeypatch.setenv("no_proxy", "")
        scorer = RemoteScorer("https://rerank.example/rerank", api_key="secret-key")
        assert run(scorer, ["q"], ["abc"]).tolist() == pytest.approx(lengths("q", ["abc"]), rel=1e-5)
        proxy.shutdown()
        thread.join()
    assert proxy.asked == [("rerank.example:443", "Basic bWU6cGFzcw==")]
    assert server.headers[0]["authorization"] == "Bearer secret-key"
    assert "proxy-authorization" not in server.headers[0]
