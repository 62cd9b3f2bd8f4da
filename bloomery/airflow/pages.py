"""Our pages in Airflow's web server: reports, read-only, for whoever is logged in."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI, HTTPException, Path
from fastapi.responses import HTMLResponse

from bloomery.airflow.work import store
from bloomery.artifacts.run import MissingInputError, artifact

# A plugin's app has no authentication of its own.
app = FastAPI(dependencies=[Depends(get_user)], docs_url=None, redoc_url=None, openapi_url=None)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""A report runs no script and loads nothing, whatever the texts in it say."""


@app.get("/reports/{manifest}")
def report(manifest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]) -> HTMLResponse:
    """The output `report` of a manifest; no other output can be read."""
    try:
        page = artifact(store(), manifest, "report").read()
    except MissingInputError as error:
        raise HTTPException(404, str(error)) from error
    return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})
