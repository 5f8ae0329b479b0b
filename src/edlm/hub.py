"""Files of a repository on the Hugging Face hub, or from its local cache where the hub does not answer.

`HF_HOME`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` mean what they mean to `huggingface_hub`. The one difference: its own
`snapshot_download` waits without end for a hub that accepts a connection and stays silent; here the first question has
the time limit `HF_HUB_ETAG_TIMEOUT` (ten seconds if not set), and there is no second try.
"""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from edlm.errors import UserError


def fetch(name: str, patterns: Sequence[str], *, revision: str | None = None) -> Path:
    """The folder with the files of the repository `name` that match `patterns`: downloaded, or what the cache has."""
    try:
        commit = HfApi().model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT).sha
        return Path(snapshot_download(name, revision=commit, allow_patterns=list(patterns)))
    except Exception as error:  # not connected, offline by setting, unknown name: each release has its own kinds
        reason = error
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns), local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise UserError(_explain(name, reason)) from error


def _explain(name: str, reason: Exception) -> str:
    if isinstance(reason, RepositoryNotFoundError | HFValidationError):
        return f"the hub has no repository {name!r}, or it is private; check the name"
    if isinstance(reason, RevisionNotFoundError):
        return f"the repository {name!r} has no such revision; check its name"
    remedy = f"connect, or put the files into a folder or into {constants.HF_HUB_CACHE}"
    if constants.HF_HUB_OFFLINE:
        return f"{name!r} is not in the local cache, and HF_HUB_OFFLINE is set; {remedy}"
    cause = " ".join(str(reason).split())[:100] or type(reason).__name__
    return f"{name!r} is not in the local cache, and {constants.ENDPOINT} does not answer ({cause}); {remedy}"
