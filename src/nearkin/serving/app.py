"""The HTTP API: addresses, what they take, what they answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Collection, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

import nearkin
from nearkin.serving import answers, overviews, page, pictures, uploads
from nearkin.serving.errors import RequestError
from nearkin.serving.filters import parse_where
from nearkin.serving.gate import Gate
from nearkin.serving.keys import COOKIE, ApiKey
from nearkin.serving.limits import Limits
from nearkin.serving.metrics import CONTENT_TYPE, Metrics
from nearkin.serving.served import ServedIndex

if TYPE_CHECKING:
    from nearkin.index import Index

ABOUT = """Search an index of embeddings by picture, text or item.

* An upload is the raw bytes of a picture, or a form with the file `image`. Addresses are never fetched.
* Items are known by their number in the index; paths are neither taken nor told.
* `where` filters: `label=cat`, `price<10`, or JSON such as `{"label": ["cat", "dog"]}`; all must hold.
* `crop` is a part of the query's picture: `x,y,width,height`, each from 0 to 1.
* An error is `{"error": {"code": ..., "message": ...}}` with one sentence.
* Where the server has an API key, send `Authorization: Bearer KEY`.
"""
_PICTURE = {"schema": {"type": "string", "format": "binary"}}
_SEARCH_BODY = {
    "required": True,
    "content": {
        **{f"image/{kind}": _PICTURE for kind in ("jpeg", "png", "webp", "gif", "bmp", "tiff")},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["image"],
                "properties": {"image": {"type": "string", "format": "binary"}},
            }
        },
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["text"],
                "properties": {"text": {"type": "string", "description": "For a model of texts."}},
            }
        },
    },
}
_VERIFY_BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["a", "b"],
                "properties": {name: {"type": "string", "format": "binary"} for name in "ab"},
            }
        }
    },
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.ErrorAnswer, "description": about}
    for status, about in {
        400: "The request cannot be read.",
        401: "The API key is missing or wrong.",
        404: "There is no such index or item.",
        413: "The upload or its picture is too large.",
        415: "The upload is not a picture.",
        422: "A value is wrong, or the picture is broken.",
        503: "Too many requests at the moment; `Retry-After` says when to try again.",
    }.items()
}

IndexName = Annotated[str, Path(alias="index", max_length=200, description="The name of an index.")]
ItemId = Annotated[int, Path(alias="item", ge=0, le=2**62, description="The number of an item.")]
K = Annotated[int, Query(ge=1, le=100_000, description="How many items.")]
WhereQuery = Annotated[list[str] | None, Query(alias="where", description="Filters that must all hold.")]
CropQuery = Annotated[
    str | None, Query(alias="crop", max_length=200, description="x,y,width,height from 0 to 1.")
]


class State:
    """What the handlers share.

    Args:
        indexes: By name.
        limits: Of the server.
        key: That requests need, if there is one.
    """

    def __init__(self, indexes: Mapping[str, Index], limits: Limits, key: ApiKey | None) -> None:
        self.limits = limits
        self.key = key
        self.metrics = Metrics()
        self.buffers = uploads.Buffers(limits)
        threads = max(4, 2 * (os.cpu_count() or 1))
        self.pool: Executor = ThreadPoolExecutor(threads, thread_name_prefix="nearkin-serve")
        self.indexes = {
            name: ServedIndex(name, index, limits, self.metrics, self.pool) for name, index in indexes.items()
        }
        served = self.indexes.values()
        self.metrics.gauge(
            "nearkin_waiting",
            "Inputs that wait for a network.",
            lambda: {(("index", one.name),): one.waiting for one in served},
        )

    def index(self, name: str) -> ServedIndex:
        """An index by its name.

        Raises:
            RequestError: There is none.
        """
        found = self.indexes.get(name)
        if found is None:
            raise RequestError(
                404, "no_index", f"there is no index {name[:100]!r}: served are {', '.join(self.indexes)}"
            )
        return found

    def close(self) -> None:
        """Finish what runs, then close all indexes."""
        for one in self.indexes.values():
            one.close()
        self.pool.shutdown()


def create_app(
    indexes: Mapping[str, Index],
    *,
    key: ApiKey | None = None,
    limits: Limits | None = None,
    hosts: Collection[str] = (),
) -> Gate:
    """The application that serves these indexes; it closes them when it ends.

    Args:
        indexes: Open indexes, by the names that they have in addresses.
        key: That requests need.
        limits: Of a request, and of all together.
        hosts: Names under which the server may be called without a key; empty: any.

    Returns:
        An ASGI application, for uvicorn or any other server.
    """
    limits = limits or Limits()
    state = State(indexes, limits, key)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(state.close)

    app = FastAPI(
        title="nearkin",
        version=nearkin.__version__,
        description=ABOUT,
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        responses=_ERRORS,
        openapi_tags=[
            {"name": "search", "description": "Find what is similar."},
            {"name": "browse", "description": "Look at what is there."},
            {"name": "server", "description": "For those who run it."},
        ],
    )
    app.state.nearkin = state
    _add_error_answers(app)
    _add_server(app)
    _add_browsing(app)
    _add_search(app)
    page.add_to(app)
    _describe_key(app)
    return Gate(app, key=key, hosts=hosts, limits=limits, metrics=state.metrics)


def _state(request: Request) -> State:
    found: State = request.app.state.nearkin
    return found


def _served(request: Request, name: IndexName) -> ServedIndex:
    return _state(request).index(name)


Server = Annotated[State, Depends(_state)]
Served = Annotated[ServedIndex, Depends(_served)]


def _add_server(app: FastAPI) -> None:
    @app.get("/health", tags=["server"], summary="Whether the server answers")
    async def health() -> answers.HealthAnswer:
        return answers.HealthAnswer(status="ok", version=nearkin.__version__)

    @app.get("/metrics", tags=["server"], summary="Counts and times for Prometheus", response_class=Response)
    async def metrics(server: Server) -> Response:
        return Response(server.metrics.text(), media_type=CONTENT_TYPE)

    @app.post("/api/session", tags=["server"], summary="Change the API key for a cookie", status_code=204)
    async def session(server: Server, request: Request, given: answers.SessionRequest) -> Response:
        if server.key is None or not server.key.matches(given.key):
            raise RequestError(401, "no_key", "this is not the API key of the server")
        answer = Response(status_code=204)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, server.key.session, httponly=True, samesite="strict", secure=secure)
        return answer


def _add_browsing(app: FastAPI) -> None:
    @app.get("/api/indexes", tags=["browse"], summary="What is served")
    async def indexes(server: Server) -> answers.IndexesAnswer:
        limits = server.limits
        return answers.IndexesAnswer(
            indexes=[await overviews.about(one) for one in server.indexes.values()],
            upload_bytes=limits.upload_bytes,
            pixels=limits.pixels,
            results=limits.results,
        )

    @app.get("/api/indexes/{index}/items", tags=["browse"], summary="List items")
    async def items(
        served: Served,
        server: Server,
        where: WhereQuery = None,
        offset: Annotated[int, Query(ge=0, le=2**31, description="How many to leave out.")] = 0,
        limit: Annotated[int, Query(ge=1, description="How many to list.")] = 60,
    ) -> answers.ItemsAnswer:
        limit = min(limit, server.limits.results)
        return await overviews.items(served, parse_where(where), offset, limit)

    @app.get("/api/indexes/{index}/items/{item}", tags=["browse"], summary="One item")
    async def item(served: Served, number: ItemId) -> answers.ItemAnswer:
        return answers.item_answer(await served.item(number))

    @app.get(
        "/api/indexes/{index}/items/{item}/thumbnail",
        tags=["browse"],
        summary="A small JPEG of an item's picture",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": _PICTURE}}},
    )
    async def thumbnail(
        served: Served,
        request: Request,
        number: ItemId,
        size: Annotated[int, Query(ge=16, le=1024, description="The longer side, in pixels.")] = 256,
    ) -> Response:
        item = await served.item(number)
        headers = {"ETag": f'"{item.content[:32]}-{size}"', "Cache-Control": "private, max-age=3600"}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(await served.thumbnail(item, size), media_type="image/jpeg", headers=headers)

    @app.get("/api/indexes/{index}/labels", tags=["browse"], summary="The classes and their sizes")
    async def labels(served: Served) -> answers.LabelsAnswer:
        return await overviews.labels(served)

    @app.get("/api/indexes/{index}/clusters", tags=["browse"], summary="Items that lie together")
    async def clusters(
        served: Served,
        limit: Annotated[int, Query(ge=1, le=200, description="How many clusters.")] = 40,
    ) -> answers.ClustersAnswer:
        return await overviews.clusters(served, limit)

    @app.get("/api/indexes/{index}/map", tags=["browse"], summary="All items in two dimensions")
    async def map_(served: Served, server: Server) -> answers.MapAnswer:
        return await overviews.map_of(served, server.limits.map_points)


def _add_search(app: FastAPI) -> None:
    @app.post(
        "/api/indexes/{index}/search",
        tags=["search"],
        summary="Search by an uploaded picture, or by text",
        openapi_extra={"requestBody": _SEARCH_BODY},
    )
    async def search(
        served: Served,
        server: Server,
        request: Request,
        *,
        k: K = 24,
        where: WhereQuery = None,
        crop: CropQuery = None,
    ) -> answers.SearchAnswer:
        started = time.perf_counter()
        filters, part = parse_where(where), _crop(crop)
        async with server.buffers.body(request) as body:
            query = await _query(request, body, server, part)
            del body
        vector = await served.embed(query)
        return _found(served, await served.search(vector, _bounded(k, server), filters), started)

    @app.get(
        "/api/indexes/{index}/items/{item}/similar",
        tags=["search"],
        summary="Search by an item, or by a part of its picture",
    )
    async def similar(
        served: Served,
        server: Server,
        number: ItemId,
        *,
        k: K = 24,
        where: WhereQuery = None,
        crop: CropQuery = None,
        of: Annotated[
            str | None,
            Query(max_length=200, description="The index that the item is of, if not this one."),
        ] = None,
    ) -> answers.SearchAnswer:
        started = time.perf_counter()
        filters, part = parse_where(where), _crop(crop)
        home = served if of is None else server.index(of)
        item = await home.item(number)
        if home is served and part is None:
            vector = (await served.ask(lambda index: index.vectors([number])))[0]
            hits = await served.search(vector, _bounded(k, server), filters, [number])
            return _found(served, hits, started)
        vector = await served.embed(item.name if item.path is None else await home.picture(number, part))
        hits = await served.search(vector, _bounded(k, server) + 1, filters)
        others = [hit for hit in hits if hit.item.content != item.content]
        return _found(served, others[: _bounded(k, server)], started)

    @app.post(
        "/api/indexes/{index}/verify",
        tags=["search"],
        summary="Whether two uploaded pictures show the same",
        openapi_extra={"requestBody": _VERIFY_BODY},
    )
    async def verify(served: Served, server: Server, request: Request) -> answers.VerifyAnswer:
        async with server.buffers.body(request) as body:
            both = uploads.files(request, body, ("a", "b"))
            a, b = [await _decoded(server, data, None) for data in both]
        first, second = await asyncio.gather(served.embed(a), served.embed(b))
        similarity = float(first @ second)
        threshold = served.threshold
        return answers.VerifyAnswer(
            similarity=round(similarity, 6),
            threshold=threshold,
            same=None if threshold is None else similarity >= threshold,
        )


async def _query(request: Request, body: bytes, server: State, crop: pictures.Crop | None) -> Any:
    """What a request searches by: a picture, or a text."""
    kind = uploads.content_type(request)
    if kind == "application/json":
        return uploads.text_of(body, server.limits)
    if kind == "multipart/form-data":
        (body,) = uploads.files(request, body, ("image",))
    return await _decoded(server, body, crop)


async def _decoded(server: State, data: bytes, crop: pictures.Crop | None) -> Any:
    pixels = server.limits.pixels
    work = server.pool.submit(pictures.decode, data, pixels=pixels, crop=crop)
    return await asyncio.wrap_future(work)


def _crop(text: str | None) -> pictures.Crop | None:
    return None if text is None else pictures.Crop.parse(text)


def _bounded(k: int, server: State) -> int:
    if k > server.limits.results:
        raise RequestError(422, "bad_value", f"k={k} is more than the {server.limits.results} that are given")
    return k


def _found(served: ServedIndex, hits: Any, started: float) -> answers.SearchAnswer:
    return answers.SearchAnswer(
        index=served.name,
        threshold=served.threshold,
        hits=[answers.hit_answer(hit) for hit in hits],
        milliseconds=round(1e3 * (time.perf_counter() - started), 2),
    )


def _add_error_answers(app: FastAPI) -> None:
    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> JSONResponse:
        return JSONResponse(error.body(), error.status, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def wrong_value(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "body"))
        told = RequestError(422, "bad_value", f"{place or 'the body'}: {first['msg'].lower()}"[:300])
        return JSONResponse(told.body(), told.status)

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> JSONResponse:
        told = RequestError(500, "internal", "the server failed to answer: see its log")
        return JSONResponse(told.body(), told.status)

    @app.exception_handler(HTTPException)
    async def plain(_: Request, error: HTTPException) -> JSONResponse:
        messages = {404: "there is nothing at this address", 405: "this address does not take this method"}
        told = RequestError(error.status_code, "bad_request", messages.get(error.status_code, "bad request"))
        return JSONResponse(told.body(), told.status, headers=error.headers)


def _describe_key(app: FastAPI) -> None:
    """Say in the OpenAPI document how the key is sent."""
    described = app.openapi()  # made once, and kept by the application
    schemes = described.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["key"] = {"type": "http", "scheme": "bearer", "description": "Only where the server has a key."}
    described["security"] = [{"key": []}, {}]
