"""The API: every endpoint, in the order in which the documents show them."""

from dwell.message import TopicSettings
from dwell.server.http import care, command, ids, looking, push, puts, queries, takes
from dwell.server.http import schemas as s
from dwell.server.http.endpoint import ROWS, ROWS_COLUMNS, Endpoint
from dwell.server.http.media import Media
from dwell.server.tokens import Right

_MANY = (*ROWS_COLUMNS, Media.NDJSON)
_T = "/v1/topics/{topic}"
_PUT, _TAKE, _ADMIN = Right.PUT, Right.TAKE, Right.ADMIN
_LOOK = (*ROWS, Media.NDJSON, Media.ARROW)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        f"{_T}/messages",
        puts.put,
        _PUT,
        s.PutResults,
        s.PutQuery,
        body=s.NewMessage | list[s.NewMessage],
        takes=(*_MANY, Media.ARROW),
        gives=ROWS_COLUMNS,
        group="put",
    ),
    Endpoint(
        "POST",
        "/v1/take",
        takes.take,
        _TAKE,
        s.Messages,
        body=s.TakeRequest,
        gives=_MANY,
        group="take",
    ),
    Endpoint(
        "POST",
        f"{_T}/take-where",
        queries.take_where,
        _TAKE,
        s.MessagePage,
        body=s.TakeWhereRequest,
        gives=ROWS_COLUMNS,
        group="take",
    ),
    Endpoint("POST", "/v1/polls/{poll}/end", takes.end_wait, _TAKE, s.EndAnswer, group="take"),
    Endpoint(
        "GET", "/v1/held", takes.held, _ADMIN, s.Messages, s.OwnerQuery, gives=_MANY, group="take"
    ),
    Endpoint(
        "GET", f"{_T}/peek", takes.peek, _TAKE, s.Messages, s.PeekQuery, gives=_MANY, group="take"
    ),
    Endpoint("GET", "/v1/push", push.push, _TAKE, None, s.PushQuery, gives=(), group="take"),
    Endpoint(
        "POST",
        "/v1/push/{stream}/credit",
        push.credit,
        _TAKE,
        s.CreditAnswer,
        body=s.CreditRequest,
        group="take",
    ),
    *(
        Endpoint(
            "POST",
            f"/v1/{handler.__name__}",
            handler,
            _TAKE,
            s.Results,
            body=body,
            takes=ROWS_COLUMNS,
            gives=ROWS_COLUMNS,
            group="by receipt",
        )
        for handler, body in (
            (takes.ack, s.AckRequest),
            (takes.release, s.ReleaseRequest),
            (takes.touch, s.TouchRequest),
            (takes.bury, s.BuryRequest),
        )
    ),
    Endpoint(
        "POST", "/v1/taken", takes.taken, _TAKE, s.Taken, body=s.AckRequest, group="by receipt"
    ),
    Endpoint(
        "POST",
        f"{_T}/cancel",
        ids.cancel,
        _PUT,
        (s.Results, s.Bulk),
        body=s.CancelRequest,
        group="by id",
    ),
    Endpoint(
        "POST",
        f"{_T}/reschedule",
        ids.reschedule,
        _PUT,
        (s.Results, s.Bulk),
        body=s.RescheduleRequest,
        group="by id",
    ),
    Endpoint(
        "POST",
        f"{_T}/kick",
        ids.kick,
        _ADMIN,
        (s.Results, s.Bulk),
        body=s.KickRequest,
        group="by id",
    ),
    Endpoint(
        "POST",
        f"{_T}/get",
        ids.get,
        _PUT,
        s.Found,
        body=s.GetRequest,
        gives=ROWS_COLUMNS,
        group="by id",
    ),
    Endpoint("GET", f"{_T}/messages/{{id:path}}", ids.get_one, _PUT, s.MessageRow, group="by id"),
    Endpoint(
        "DELETE", f"{_T}/messages/{{id:path}}", ids.cancel_one, _PUT, s.Results, group="by id"
    ),
    Endpoint("POST", f"{_T}/clear", queries.clear, _PUT, s.ClearAnswer, group="by id"),
    Endpoint("POST", "/v1/named", ids.named, _ADMIN, s.Named, body=s.NamedRequest, group="by id"),
    Endpoint(
        "GET",
        f"{_T}/messages",
        looking.list_messages,
        _ADMIN,
        s.MessagePage,
        s.ListQuery,
        gives=(*_LOOK, Media.COLUMNS),
        group="looking",
    ),
    Endpoint(
        "POST",
        f"{_T}/find",
        queries.find,
        _ADMIN,
        s.MessagePage,
        body=s.FindRequest,
        gives=ROWS_COLUMNS,
        group="looking",
    ),
    Endpoint(
        "POST",
        "/v1/sweep",
        looking.sweep,
        _ADMIN,
        s.SweepAnswer,
        body=s.SweepRequest,
        gives=ROWS_COLUMNS,
        group="looking",
    ),
    Endpoint(
        "GET",
        "/v1/events",
        looking.events,
        _ADMIN,
        s.EventsPage,
        s.EventsQuery,
        gives=(*_LOOK, Media.COLUMNS),
        group="looking",
    ),
    Endpoint("GET", "/v1/topics", looking.topics, _ADMIN, s.TopicsAnswer, group="looking"),
    Endpoint("GET", "/v1/stats", looking.stats, _ADMIN, s.StatsAnswer, group="looking"),
    Endpoint("GET", f"{_T}/sizes", looking.sizes, _ADMIN, s.SizesAnswer, group="looking"),
    Endpoint("GET", f"{_T}/settings", looking.settings, _PUT, TopicSettings, group="settings"),
    Endpoint(
        "PATCH",
        f"{_T}/settings",
        looking.configure,
        _ADMIN,
        TopicSettings,
        body=s.SettingsChange,
        group="settings",
    ),
    Endpoint(
        "POST",
        "/command",
        command.command,
        _PUT,
        s.CommandAnswer,
        body=s.Command,
        group="job protocol",
    ),
    Endpoint("GET", "/v1/store", care.store, _TAKE, s.StoreAnswer, group="care"),
    Endpoint("GET", "/v1/backup", care.backup, _ADMIN, None, gives=(), group="care"),
    Endpoint(
        "POST",
        "/v1/find-stale",
        care.find_stale,
        _ADMIN,
        s.StaleAnswer,
        body=s.StaleRequest,
        group="care",
    ),
    Endpoint("GET", "/metrics", care.metrics, _ADMIN, None, gives=(), group="care"),
    Endpoint("GET", "/healthz", care.healthz, None, None, group="care"),
    Endpoint("GET", "/readyz", care.readyz, None, None, group="care"),
)
