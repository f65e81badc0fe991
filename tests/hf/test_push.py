"""Pushing to the hub sends the model with its code; the hub is a small server of the test's own."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from loopt.hf.carried_code import CARRIED

PUSH = """
import sys
from loopt.hf import LoopedConfig, LoopedForCausalLM
model = LoopedForCausalLM(LoopedConfig(plan="1x2", d_model=8, n_heads=1, d_ff=8, vocab_size=5, max_len=8))
model.push_to_hub("me/model", private=True, commit_message="hello")
model.save_pretrained(sys.argv[1], push_to_hub=True, repo_id="me/model", private=True, commit_message="hello")
"""


class Hub(ThreadingHTTPServer):
    """Answers a client of the hub, and keeps what it sends."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.created: list[Any] = []
        self.commits: list[list[dict[str, Any]]] = []
        self.address = f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()

    do_GET = do_HEAD

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
        answer: dict[str, Any] = {}
        if self.path == "/api/repos/create":
            self.server.created.append(json.loads(sent))
            answer = {"url": f"{self.server.address}/me/model"}
        elif "/preupload/" in self.path:
            files = [{"path": file["path"]} for file in json.loads(sent)["files"]]
            answer = {"files": [file | {"uploadMode": "regular", "shouldIgnore": False} for file in files]}
        elif "/commit/" in self.path:
            self.server.commits.append([json.loads(line) for line in sent.splitlines()])
            answer = {"commitOid": "1" * 40, "commitUrl": f"{self.server.address}/me/model/commit/{'1' * 40}"}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.slow
def test_the_model_is_pushed_with_its_code(hub: Hub, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_none", "HF_HOME": str(tmp_path / "home")}
    environment |= {"HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-c", PUSH, str(tmp_path / "saved")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [one["visibility"] for one in hub.created] == ["private", "private"]
    assert len(hub.commits) == 2  # by push_to_hub and by save_pretrained
    for header, *entries in hub.commits:
        assert header["value"]["summary"] == "hello"
        files = {entry["value"]["path"]: base64.b64decode(entry["value"]["content"]) for entry in entries}
        assert files.keys() >= {Path(name).name for name in CARRIED} | {"model.safetensors", "config.json"}
        assert "modeling_looped.LoopedForCausalLM" in json.loads(files["config.json"])["auto_map"].values()
        assert b"from .plan import" in files["modeling_looped.py"]
