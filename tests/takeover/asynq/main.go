// Puts tasks into asynq, and works on them: asynq PORT VERB [COUNT]
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

var first = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)

func main() {
	log.SetFlags(0)
	redis := asynq.RedisClientOpt{Addr: "127.0.0.1:" + os.Args[1]}
	client := asynq.NewClient(redis)
	defer client.Close()
	put := func(id, queue string, payload []byte, options ...asynq.Option) error {
		task := asynq.NewTaskWithHeaders("a", payload, map[string]string{"traceparent": "00-1"})
		options = append(options, asynq.TaskID(id), asynq.Queue(queue))
		_, err := client.Enqueue(task, options...)
		if errors.Is(err, asynq.ErrTaskIDConflict) {
			return nil
		}
		return err
	}
	switch os.Args[2] {
	case "fill":
		count, _ := strconv.Atoi(os.Args[3])
		for n := 0; n < count; n++ {
			payload := []byte(strconv.Itoa(n))
			due := asynq.ProcessAt(first.Add(time.Duration(n)*time.Second + 999*time.Millisecond))
			must(put(fmt.Sprintf("later-%d", n), "mails", payload, due))
			must(put(fmt.Sprintf("now-%d", n), "orders", payload))
		}
	case "odd":
		must(put("large", "mails", make([]byte, 2<<20)))
		must(put("grouped", "mails", nil, asynq.Group("g")))
		must(put("grouped-later", "mails", nil, asynq.Group("g"), asynq.ProcessIn(time.Hour)))
		must(put("fine", "mails", []byte{0, 255}, asynq.MaxRetry(3), asynq.Timeout(time.Minute),
			asynq.Deadline(first)))
		must(put("empty", "mails", nil, asynq.MaxRetry(0)))
	case "slashes":
		must(put("c", "a/b", nil))
		must(put("b/c", "a", nil))
	case "unique":
		err := put(os.Args[3], "mails", nil, asynq.Unique(time.Hour), asynq.ProcessIn(time.Hour))
		fmt.Println(errors.Is(err, asynq.ErrDuplicateTask))
	case "retries":
		must(put("retried", "mails", []byte("x"), asynq.MaxRetry(7)))
		failed := make(chan bool, 1)
		server := asynq.NewServer(redis, asynq.Config{
			Queues:         map[string]int{"mails": 1},
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
			LogLevel:       asynq.FatalLevel,
		})
		must(server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			failed <- true
			return errors.New("no way")
		})))
		<-failed
		server.Shutdown()
	case "read":
		// What a message holds is what a task had.
		inspector := asynq.NewInspector(redis)
		for _, id := range os.Args[3:] {
			info, err := inspector.GetTaskInfo("mails", id)
			fmt.Println(id, info != nil, errors.Is(err, asynq.ErrTaskNotFound))
		}
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
