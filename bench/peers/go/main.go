// A driver of peers whose users write Go: one JSON object a line, as bench/peers/driver.py says.
//
//	peers nats                        drives a NATS server
//	peers nats-server PORT FOLDER SYNC  is one; SYNC is how often it syncs, or "always"
//	peers river                       drives River, on PostgreSQL or SQLite
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"
)

const bodyBytes = 200

// Client is a peer. Numbers name messages; dues are milliseconds, and nil when due at once.
type Client interface {
	Open(address string) (map[string]string, error)
	Put(numbers []int64, dueMS []int64, keep bool) error
	Take(takers, limit int, taken *Log) error
	Cancel(numbers []int64) (int, error)
	Move(numbers []int64, dueMS []int64) (int, error)
}

// Command is one of them, with all that any of them is told.
type Command struct {
	Do, Address, File      string
	First, Count, Batch    int64
	Callers, Takers, Limit int
	StartMS                *int64 `json:"start_ms"`
	Rate                   int64
	Seconds                float64
	LeadMS                 int64 `json:"lead_ms"`
	Keep                   bool
}

// Log is a file to which the numbers of messages are appended, with the time.
type Log struct{ file *os.File }

func openLog(path string) *Log {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	must(err)
	return &Log{file}
}

// Add notes that messages were seen now.
func (l *Log) Add(numbers ...int64) {
	pairs := make([]byte, 0, 16*len(numbers))
	now := float64(time.Now().UnixNano()) / 1e6
	for _, number := range numbers {
		pairs = binary.LittleEndian.AppendUint64(pairs, math.Float64bits(float64(number)))
		pairs = binary.LittleEndian.AppendUint64(pairs, math.Float64bits(now))
	}
	_, err := l.file.Write(pairs)
	must(err)
}

func bodyOf(number int64) []byte {
	body := fmt.Appendf(make([]byte, 0, bodyBytes), "%010d", number)
	for len(body) < bodyBytes {
		body = append(body, 'x')
	}
	return body
}

func numberOf(body []byte) int64 {
	number, err := strconv.ParseInt(string(body[:10]), 10, 64)
	must(err)
	return number
}

// versions returns those of the modules that this program was built of.
func versions(modules ...string) map[string]string {
	found := map[string]string{}
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		for _, wanted := range modules {
			if module.Path == wanted {
				found[wanted] = module.Version
			}
		}
	}
	return found
}

// calls shares the numbers of one command among its callers, and runs them.
func calls(c Command, call func(numbers, dueMS []int64) (int, error)) map[string]any {
	var (
		lock         sync.Mutex
		callers      sync.WaitGroup
		log          *Log
		done, errors int
		first        string
	)
	if c.File != "" {
		log = openLog(c.File)
	}
	next, start := c.First, time.Now()
	take := func() (numbers []int64) {
		lock.Lock()
		defer lock.Unlock()
		if c.Seconds > 0 && time.Since(start).Seconds() > c.Seconds {
			return nil
		}
		for ; int64(len(numbers)) < c.Batch && next < c.First+c.Count; next++ {
			numbers = append(numbers, next)
		}
		return numbers
	}
	work := func() {
		for numbers := take(); numbers != nil; numbers = take() {
			dueMS := c.dueMS(numbers)
			if c.LeadMS > 0 {
				time.Sleep(time.Until(time.UnixMilli(dueMS[0] - c.LeadMS)))
			}
			count, err := call(numbers, dueMS)
			lock.Lock()
			done += count
			if err != nil {
				errors++
				if first == "" {
					first = err.Error()
				}
			} else if log != nil {
				log.Add(numbers...)
			}
			lock.Unlock()
			if err != nil {
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
	for range c.Callers {
		callers.Go(work)
	}
	callers.Wait()
	seconds := time.Since(start).Seconds()
	return map[string]any{"count": done, "seconds": seconds, "errors": errors, "error": first}
}

func (c Command) dueMS(numbers []int64) []int64 {
	if c.StartMS == nil {
		return nil
	}
	due := make([]int64, len(numbers))
	for i, number := range numbers {
		due[i] = *c.StartMS
		if c.Rate > 0 {
			due[i] += (number - c.First) * 1000 / c.Rate
		}
	}
	return due
}

func answer(client Client, can map[string]int, c Command) (map[string]any, error) {
	switch c.Do {
	case "open":
		versions, err := client.Open(c.Address)
		return map[string]any{"versions": versions, "can": can}, err
	case "take":
		return map[string]any{}, client.Take(c.Takers, c.Limit, openLog(c.File))
	case "put":
		return calls(c, func(numbers, dueMS []int64) (int, error) {
			if err := client.Put(numbers, dueMS, c.Keep); err != nil {
				return 0, err
			}
			return len(numbers), nil
		}), nil
	case "cancel":
		return calls(c, func(numbers, _ []int64) (int, error) { return client.Cancel(numbers) }), nil
	case "move":
		return calls(c, client.Move), nil
	}
	return nil, fmt.Errorf("do: got %q, expected open, take, put, cancel or move", c.Do)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	var client Client
	can := map[string]int{"put": 1000, "cancel": 1}
	switch os.Args[1] {
	case "nats-server":
		serveNats(os.Args[2:])
		return
	case "nats":
		client = &Nats{}
		can["move"] = 1000
	default:
		client = &River{ids: map[int64]int64{}}
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var command Command
		must(json.Unmarshal(lines.Bytes(), &command))
		found, err := answer(client, can, command)
		if err != nil {
			found = map[string]any{"failed": err.Error()}
		}
		must(json.NewEncoder(os.Stdout).Encode(found))
	}
}
