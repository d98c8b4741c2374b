"""The deployment of Ray Serve that `served.py` compares with: loaded in Serve's environment only."""

import numpy as np
from fastapi import FastAPI, Request
from ray import serve

app = FastAPI()


@serve.deployment(num_replicas=1)
@serve.ingress(app)
class Target:
    """Takes what comes."""

    @app.post("/nothing")  # type: ignore[untyped-decorator]  # FastAPI is not in the environment that checks types
    async def nothing(self) -> None:
        """An empty call."""

    @app.post("/takes")  # type: ignore[untyped-decorator]  # FastAPI is not in the environment that checks types
    async def takes(self, request: Request) -> int:
        """Takes an array."""
        return len(np.frombuffer(await request.body(), dtype=np.uint8))
