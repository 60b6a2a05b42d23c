package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// serveNats runs a NATS server, as its own program does with these options.
func serveNats(words []string) {
	port, err := strconv.Atoi(words[0])
	must(err)
	options := &server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: words[1]}
	if words[2] == "always" {
		options.SyncAlways = true
	} else {
		options.SyncInterval, err = time.ParseDuration(words[2])
		must(err)
	}
	nats, err := server.NewServer(options)
	must(err)
	nats.Start()
	nats.WaitForShutdown()
}

// Nats is JetStream with message schedules: a subject a delayed message, and one for all that are due.
type Nats struct {
	address string
	stream  jetstream.JetStream
	own     jetstream.Stream
}

const (
	streamName = "BENCH"
	dueSubject = "bench.due"
)

func laterSubject(number int64) string { return fmt.Sprintf("bench.later.%d", number) }

func (n *Nats) connect() (jetstream.JetStream, error) {
	connection, err := nats.Connect(n.address, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(4096))
}

// Open connects, and makes the stream.
func (n *Nats) Open(address string) (map[string]string, error) {
	n.address = address
	var err error
	if n.stream, err = n.connect(); err != nil {
		return nil, err
	}
	n.own, err = n.stream.CreateOrUpdateStream(context.Background(), jetstream.StreamConfig{
		Name:              streamName,
		Subjects:          []string{"bench.>"},
		Retention:         jetstream.WorkQueuePolicy,
		Storage:           jetstream.FileStorage,
		AllowMsgSchedules: true,
	})
	return versions("github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go"), err
}

func message(number int64, dueMS *int64) *nats.Msg {
	message := nats.NewMsg(dueSubject)
	message.Data = bodyOf(number)
	if dueMS != nil {
		message.Subject = laterSubject(number)
		due := time.UnixMilli(*dueMS).UTC().Format(time.RFC3339Nano)
		message.Header.Set("Nats-Schedule", "@at "+due)
		message.Header.Set("Nats-Schedule-Target", dueSubject)
	}
	return message
}

// Put publishes, and waits until the stream has confirmed all.
func (n *Nats) Put(numbers []int64, dueMS []int64, _ bool) error {
	futures := make([]jetstream.PubAckFuture, 0, len(numbers))
	for i, number := range numbers {
		var due *int64
		if dueMS != nil {
			due = &dueMS[i]
		}
		if len(numbers) == 1 {
			_, err := n.stream.PublishMsg(context.Background(), message(number, due))
			return err
		}
		future, err := n.stream.PublishMsgAsync(message(number, due))
		if err != nil {
			return err
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return err
		}
	}
	return nil
}

// Take consumes by one consumer, over a connection for each taker; acks are sent, not confirmed.
func (n *Nats) Take(takers, limit int, taken *Log) error {
	for range takers {
		stream, err := n.connect()
		if err != nil {
			return err
		}
		consumer, err := stream.CreateOrUpdateConsumer(context.Background(), streamName, jetstream.ConsumerConfig{
			Durable:       "takers",
			FilterSubject: dueSubject,
			AckPolicy:     jetstream.AckExplicitPolicy,
			MaxAckPending: 16 * limit,
		})
		if err != nil {
			return err
		}
		handle := func(message jetstream.Msg) {
			taken.Add(numberOf(message.Data()))
			_ = message.Ack()
		}
		if _, err = consumer.Consume(handle, jetstream.PullMaxMessages(limit)); err != nil {
			return err
		}
	}
	return nil
}

// Cancel purges the subject of each message.
func (n *Nats) Cancel(numbers []int64) (int, error) {
	for _, number := range numbers {
		if err := n.own.Purge(context.Background(), jetstream.WithPurgeSubject(laterSubject(number))); err != nil {
			return 0, err
		}
	}
	return len(numbers), nil
}

// Move publishes again: the second schedule of a subject replaces the first.
func (n *Nats) Move(numbers []int64, dueMS []int64) (int, error) {
	return len(numbers), n.Put(numbers, dueMS, true)
}
