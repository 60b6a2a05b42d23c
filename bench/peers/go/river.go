package main

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	_ "modernc.org/sqlite"
)

// fetchCooldown is shorter than River's own, so that an idle client looks as soon as it may.
const fetchCooldown = 5 * time.Millisecond

// River is a job queue in tables of a database.
type River struct {
	lock sync.Mutex
	ids  map[int64]int64
	opened
}

// opened hides which of the two databases it is.
type opened interface {
	insert(numbers, dueMS []int64, keep bool) ([]int64, error)
	start(limit int, taken *Log) error
	cancel(id int64) error
}

// Open connects, and makes the tables.
func (r *River) Open(address string) (map[string]string, error) {
	ctx := context.Background()
	if path, is := strings.CutPrefix(address, "sqlite:"); is {
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_txlock=immediate")
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(1)
		r.opened, err = open(ctx, riversqlite.New(db))
		return versions("github.com/riverqueue/river", "modernc.org/sqlite"), err
	}
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	r.opened, err = open(ctx, riverpgxv5.New(pool))
	return versions("github.com/riverqueue/river"), err
}

// Put inserts; COPY is for those that nobody needs the id of.
func (r *River) Put(numbers []int64, dueMS []int64, keep bool) error {
	ids, err := r.insert(numbers, dueMS, keep)
	r.lock.Lock()
	defer r.lock.Unlock()
	for i, id := range ids {
		r.ids[numbers[i]] = id
	}
	return err
}

// Take starts a client for each taker, which works on as many jobs at once as it may fetch.
func (r *River) Take(takers, limit int, taken *Log) error {
	for range takers {
		if err := r.start(limit, taken); err != nil {
			return err
		}
	}
	return nil
}

// Cancel cancels jobs one by one.
func (r *River) Cancel(numbers []int64) (int, error) {
	for _, number := range numbers {
		r.lock.Lock()
		id := r.ids[number]
		r.lock.Unlock()
		if err := r.cancel(id); err != nil {
			return 0, err
		}
	}
	return len(numbers), nil
}

// Move is not there.
func (r *River) Move([]int64, []int64) (int, error) { panic("River does not move jobs") }

// Job is one message.
type Job struct {
	Body string `json:"body"`
}

// Kind is the name of its worker.
func (Job) Kind() string { return "bench" }

type worker struct {
	river.WorkerDefaults[Job]
	taken *Log
}

// Work notes a message.
func (w *worker) Work(_ context.Context, job *river.Job[Job]) error {
	w.taken.Add(numberOf([]byte(job.Args.Body)))
	return nil
}

type tables[T any] struct {
	driver riverdriver.Driver[T]
	client *river.Client[T]
}

func open[T any](ctx context.Context, driver riverdriver.Driver[T]) (opened, error) {
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return nil, err
	}
	if _, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	client, err := river.NewClient(driver, &river.Config{FetchCooldown: fetchCooldown})
	return &tables[T]{driver, client}, err
}

func (t *tables[T]) insert(numbers, dueMS []int64, keep bool) (ids []int64, err error) {
	ctx := context.Background()
	params := make([]river.InsertManyParams, len(numbers))
	for i, number := range numbers {
		params[i].Args = Job{string(bodyOf(number))}
		if dueMS != nil {
			params[i].InsertOpts = &river.InsertOpts{ScheduledAt: time.UnixMilli(dueMS[i])}
		}
	}
	if len(params) == 1 && !keep {
		_, err = t.client.Insert(ctx, params[0].Args, params[0].InsertOpts)
		return nil, err
	}
	if !keep {
		_, err = t.client.InsertManyFast(ctx, params)
		return nil, err
	}
	results, err := t.client.InsertMany(ctx, params)
	for _, result := range results {
		ids = append(ids, result.Job.ID)
	}
	return ids, err
}

func (t *tables[T]) start(limit int, taken *Log) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{taken: taken})
	client, err := river.NewClient(t.driver, &river.Config{
		FetchCooldown: fetchCooldown,
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: limit}},
		Workers:       workers,
	})
	if err != nil {
		return err
	}
	return client.Start(context.Background())
}

func (t *tables[T]) cancel(id int64) error {
	_, err := t.client.JobCancel(context.Background(), id)
	return err
}
