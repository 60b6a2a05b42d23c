"""The API: every endpoint, in the order in which the documents show them."""

from dwell.message import TopicSettings
from dwell.server.board.board import Overview
from dwell.server.http import (
    board,
    care,
    command,
    health,
    histories,
    ids,
    looking,
    push,
    puts,
    queries,
    schedules,
    takes,
    watch,
)
from dwell.server.http.call import MAX_REQUEST_BYTES
from dwell.server.http.endpoint import ROWS, ROWS_COLUMNS, Endpoint
from dwell.server.http.media import Media
from dwell.server.http.schemas import answers as a
from dwell.server.http.schemas import board as b
from dwell.server.http.schemas import requests as r
from dwell.server.tokens import Right

_MANY = (*ROWS_COLUMNS, Media.NDJSON)
_T = "/v1/topics/{topic}"
_S = "/v1/schedules/{name}"
_PUT, _TAKE, _ADMIN = Right.PUT, Right.TAKE, Right.ADMIN
_LOOK = (*ROWS, Media.NDJSON, Media.ARROW)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        f"{_T}/messages",
        puts.put,
        _PUT,
        a.PutResults,
        r.PutQuery,
        body=r.NewMessage | list[r.NewMessage],
        takes=(*_MANY, Media.ARROW),
        gives=ROWS_COLUMNS,
        group="put",
        most_bytes=MAX_REQUEST_BYTES,
        numbered=True,
    ),
    Endpoint(
        "POST",
        "/v1/take",
        takes.take,
        _TAKE,
        a.Messages,
        body=r.TakeRequest,
        gives=_MANY,
        group="take",
    ),
    Endpoint(
        "POST",
        f"{_T}/take-where",
        queries.take_where,
        _TAKE,
        a.MessagePage,
        body=r.TakeWhereRequest,
        gives=ROWS_COLUMNS,
        group="take",
    ),
    Endpoint("POST", "/v1/polls/{poll}/end", takes.end_wait, _TAKE, a.EndAnswer, group="take"),
    Endpoint(
        "GET",
        "/v1/held",
        takes.held,
        _ADMIN,
        a.MessagePage,
        r.OwnerQuery,
        gives=_MANY,
        group="take",
    ),
    Endpoint(
        "GET", f"{_T}/peek", takes.peek, _TAKE, a.Messages, r.PeekQuery, gives=_MANY, group="take"
    ),
    Endpoint(
        "POST",
        "/v1/push",
        push.push,
        _TAKE,
        None,
        body=r.PushRequest,
        gives=(),
        group="take",
    ),
    Endpoint(
        "POST",
        "/v1/push/{stream}/credit",
        push.credit,
        _TAKE,
        a.CreditAnswer,
        body=r.CreditRequest,
        group="take",
    ),
    *(
        Endpoint(
            "POST",
            f"/v1/{handler.__name__}",
            handler,
            _TAKE,
            a.Results,
            body=body,
            takes=ROWS_COLUMNS,
            gives=ROWS_COLUMNS,
            group="by receipt",
            numbered=handler is not takes.touch,
        )
        for handler, body in (
            (takes.ack, r.AckRequest),
            (takes.release, r.ReleaseRequest),
            (takes.touch, r.TouchRequest),
            (takes.bury, r.BuryRequest),
        )
    ),
    Endpoint(
        "POST", "/v1/taken", takes.taken, _TAKE, a.Taken, body=r.AckRequest, group="by receipt"
    ),
    Endpoint(
        "POST",
        f"{_T}/cancel",
        ids.cancel,
        _PUT,
        (a.Results, a.Bulk),
        body=r.CancelRequest,
        group="by id",
        numbered=True,
    ),
    Endpoint(
        "POST",
        f"{_T}/reschedule",
        ids.reschedule,
        _PUT,
        (a.Results, a.Bulk),
        body=r.RescheduleRequest,
        group="by id",
        numbered=True,
    ),
    Endpoint(
        "POST",
        f"{_T}/kick",
        ids.kick,
        _ADMIN,
        (a.Results, a.Bulk),
        body=r.KickRequest,
        group="by id",
        numbered=True,
    ),
    Endpoint(
        "POST",
        f"{_T}/get",
        ids.get,
        _PUT,
        a.Found,
        body=r.GetRequest,
        gives=ROWS_COLUMNS,
        group="by id",
    ),
    Endpoint("GET", f"{_T}/messages/{{id:path}}", ids.get_one, _PUT, a.MessageRow, group="by id"),
    Endpoint(
        "DELETE", f"{_T}/messages/{{id:path}}", ids.cancel_one, _PUT, a.Results, group="by id"
    ),
    Endpoint("POST", f"{_T}/clear", queries.clear, _PUT, a.ClearAnswer, group="by id"),
    Endpoint("POST", "/v1/named", ids.named, _ADMIN, a.Named, body=r.NamedRequest, group="by id"),
    Endpoint(
        "PUT",
        _S,
        schedules.put_schedule,
        _ADMIN,
        a.ScheduleAnswer,
        body=r.ScheduleRequest,
        takes=(Media.JSON,),
        group="schedules",
    ),
    Endpoint(
        "GET", _S, schedules.get_schedule, _ADMIN, a.ScheduleRow, r.RunsQuery, group="schedules"
    ),
    Endpoint(
        "PATCH",
        _S,
        schedules.change_schedule,
        _ADMIN,
        a.ScheduleAnswer,
        body=r.ScheduleChange,
        takes=(Media.JSON,),
        group="schedules",
    ),
    Endpoint("DELETE", _S, schedules.remove_schedule, _ADMIN, a.ScheduleAnswer, group="schedules"),
    *(
        Endpoint("POST", f"{_S}/{verb}", handler, _ADMIN, a.ScheduleAnswer, group="schedules")
        for verb, handler in (
            ("pause", schedules.pause_schedule),
            ("resume", schedules.resume_schedule),
        )
    ),
    Endpoint(
        "GET",
        "/v1/schedules",
        schedules.list_schedules,
        _ADMIN,
        a.SchedulesPage,
        r.SchedulesQuery,
        group="schedules",
    ),
    Endpoint(
        "GET",
        f"{_T}/messages",
        looking.list_messages,
        _ADMIN,
        a.MessagePage,
        r.ListQuery,
        gives=(*_LOOK, Media.COLUMNS),
        group="looking",
    ),
    Endpoint(
        "POST",
        f"{_T}/find",
        queries.find,
        _ADMIN,
        a.MessagePage,
        body=r.FindRequest,
        gives=ROWS_COLUMNS,
        group="looking",
    ),
    Endpoint(
        "POST",
        "/v1/sweep",
        looking.sweep,
        _ADMIN,
        a.SweepAnswer,
        body=r.SweepRequest,
        gives=ROWS_COLUMNS,
        group="looking",
    ),
    Endpoint(
        "GET",
        "/v1/events",
        looking.events,
        _ADMIN,
        a.EventsPage,
        r.EventsQuery,
        gives=(*_LOOK, Media.COLUMNS),
        group="looking",
    ),
    Endpoint("GET", "/v1/rights", board.rights, _TAKE, b.RightsAnswer, group="board"),
    Endpoint(
        "GET", "/v1/overview", board.overview, _ADMIN, Overview, b.OverviewQuery, group="board"
    ),
    Endpoint(
        "POST", "/v1/load", board.load, _ADMIN, b.LoadAnswer, body=b.LoadRequest, group="board"
    ),
    Endpoint(
        "GET", "/v1/oldest", board.oldest, _ADMIN, b.OldestAnswer, r.TopicsQuery, group="board"
    ),
    Endpoint(
        "GET", "/v1/holders", board.holders, _ADMIN, b.HoldersAnswer, b.HoldersQuery, group="board"
    ),
    Endpoint("GET", "/v1/health", health.health, _ADMIN, b.HealthAnswer, group="board"),
    Endpoint(
        "POST",
        "/v1/watch",
        watch.watch,
        _ADMIN,
        None,
        body=b.WatchRequest,
        takes=(Media.JSON,),
        gives=(),
        group="board",
    ),
    Endpoint(
        "GET",
        f"{_T}/history/{{id:path}}",
        histories.history,
        _ADMIN,
        b.HistoryAnswer,
        b.HistoryQuery,
        group="board",
    ),
    Endpoint(
        "GET",
        f"{_T}/reasons",
        histories.reasons,
        _ADMIN,
        b.ReasonsAnswer,
        b.ReasonsQuery,
        group="board",
    ),
    Endpoint(
        "GET", "/v1/topics", looking.topics, _ADMIN, a.TopicsAnswer, r.TopicsQuery, group="looking"
    ),
    Endpoint(
        "GET", "/v1/stats", looking.stats, _ADMIN, a.StatsAnswer, r.TopicsQuery, group="looking"
    ),
    Endpoint("GET", f"{_T}/sizes", looking.sizes, _ADMIN, a.SizesAnswer, group="looking"),
    Endpoint("GET", f"{_T}/settings", looking.settings, _PUT, TopicSettings, group="settings"),
    Endpoint(
        "PATCH",
        f"{_T}/settings",
        looking.configure,
        _ADMIN,
        TopicSettings,
        body=r.SettingsChange,
        group="settings",
    ),
    Endpoint(
        "PUT",
        f"{_T}/settings",
        looking.replace_settings,
        _ADMIN,
        TopicSettings,
        body=r.SettingsChange,
        group="settings",
    ),
    Endpoint(
        "POST",
        "/command",
        command.command,
        _PUT,
        a.CommandAnswer,
        body=r.Command,
        group="job protocol",
    ),
    Endpoint("GET", "/v1/store", care.store, _TAKE, a.StoreAnswer, group="care"),
    Endpoint("GET", "/v1/backup", care.backup, _ADMIN, None, gives=(), group="care"),
    Endpoint(
        "POST",
        "/v1/find-stale",
        care.find_stale,
        _ADMIN,
        a.StaleAnswer,
        body=r.StaleRequest,
        group="care",
    ),
    Endpoint("GET", "/metrics", care.metrics, _ADMIN, None, gives=(), group="care"),
    Endpoint("GET", "/healthz", care.healthz, None, None, group="care"),
    Endpoint("GET", "/readyz", care.readyz, None, None, group="care"),
)
