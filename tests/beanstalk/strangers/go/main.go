// Every command of go-beanstalk, against the server whose address is given.
package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/beanstalkd/go-beanstalk"
)

// check ends the program unless what came is what was expected.
func check(what string, came, expected interface{}) {
	if !reflect.DeepEqual(came, expected) {
		fmt.Printf("%s: got %v, expected %v\n", what, came, expected)
		os.Exit(1)
	}
}

// ok ends the program if there is an error.
func ok(what string, err error) {
	if err != nil {
		fmt.Printf("%s: %v\n", what, err)
		os.Exit(1)
	}
}

// fails ends the program unless an error is of a kind.
func fails(what string, err, kind error) {
	if !errors.Is(err, kind) {
		fmt.Printf("%s: got %v, expected %v\n", what, err, kind)
		os.Exit(1)
	}
}

func contains(names []string, name string) bool {
	for _, each := range names {
		if each == name {
			return true
		}
	}
	return false
}

func main() {
	conn, err := beanstalk.Dial("tcp", os.Args[1])
	ok("dial", err)
	other, err := beanstalk.DialTimeout("tcp", os.Args[1], 5*time.Second)
	ok("dial with a timeout", err)
	tube := beanstalk.NewTube(conn, "go-tube")
	set := beanstalk.NewTubeSet(conn, "go-tube")

	id := put(tube, "hello", 5, 0)
	reserveAndDelete(conn, set, id)
	releaseAndBury(conn, tube, set)
	delayed(conn, tube, set)
	look(conn, tube)
	held(conn, other, tube, set)
	pause(tube, set)
	limits(tube)

	ok("close", conn.Close())
	ok("close", other.Close())
	fmt.Println("done")
}

func put(tube *beanstalk.Tube, body string, pri uint32, delay time.Duration) uint64 {
	id, err := tube.Put([]byte(body), pri, delay, 60*time.Second)
	ok("put", err)
	return id
}

func reserveAndDelete(conn *beanstalk.Conn, set *beanstalk.TubeSet, id uint64) {
	found, body, err := set.Reserve(time.Second)
	ok("reserve", err)
	check("reserve", found, id)
	check("reserve", string(body), "hello")
	ok("touch", conn.Touch(id))
	ok("delete", conn.Delete(id))
	fails("delete", conn.Delete(id), beanstalk.ErrNotFound)
	_, _, err = set.Reserve(0)
	fails("reserve", err, beanstalk.ErrTimeout)
}

func releaseAndBury(conn *beanstalk.Conn, tube *beanstalk.Tube, set *beanstalk.TubeSet) {
	id := put(tube, "a", 5, 0)
	_, _, err := set.Reserve(time.Second)
	ok("reserve", err)
	ok("release", conn.Release(id, 1, 0))
	found, body, err := tube.PeekReady()
	ok("peek-ready", err)
	check("peek-ready", found, id)
	check("peek-ready", string(body), "a")
	_, _, err = set.Reserve(time.Second)
	ok("reserve", err)
	ok("bury", conn.Bury(id, 2))
	found, _, err = tube.PeekBuried()
	ok("peek-buried", err)
	check("peek-buried", found, id)
	ok("kick-job", conn.KickJob(id))
	fails("kick-job", conn.KickJob(id), beanstalk.ErrNotFound)
	_, _, err = tube.PeekBuried()
	fails("peek-buried", err, beanstalk.ErrNotFound)
	ok("delete", conn.Delete(id))
}

func delayed(conn *beanstalk.Conn, tube *beanstalk.Tube, set *beanstalk.TubeSet) {
	id := put(tube, "a", 5, 100*time.Second)
	found, _, err := tube.PeekDelayed()
	ok("peek-delayed", err)
	check("peek-delayed", found, id)
	count, err := tube.Kick(10)
	ok("kick", err)
	check("kick", count, 1)
	found, _, err = set.Reserve(time.Second)
	ok("reserve", err)
	check("reserve", found, id)
	ok("release", conn.Release(id, 5, 100*time.Second))
	body, err := conn.ReserveJob(id)
	ok("reserve-job", err)
	check("reserve-job", string(body), "a")
	_, err = conn.ReserveJob(id)
	fails("reserve-job", err, beanstalk.ErrNotFound)
	ok("delete", conn.Delete(id))
}

func look(conn *beanstalk.Conn, tube *beanstalk.Tube) {
	id := put(tube, "a", 5, 0)
	body, err := conn.Peek(id)
	ok("peek", err)
	check("peek", string(body), "a")
	stats, err := conn.StatsJob(id)
	ok("stats-job", err)
	check("stats-job", stats["id"], strconv.FormatUint(id, 10))
	check("stats-job", stats["state"], "ready")
	check("stats-job", stats["pri"], "5")
	stats, err = tube.Stats()
	ok("stats-tube", err)
	check("stats-tube", stats["current-jobs-ready"], "1")
	stats, err = conn.Stats()
	ok("stats", err)
	check("stats", stats["draining"], "false")
	names, err := conn.ListTubes()
	ok("list-tubes", err)
	check("list-tubes", contains(names, "go-tube"), true)
	ok("delete", conn.Delete(id))
	_, err = conn.Peek(id)
	fails("peek", err, beanstalk.ErrNotFound)
}

func held(conn, other *beanstalk.Conn, tube *beanstalk.Tube, set *beanstalk.TubeSet) {
	id, err := tube.Put([]byte("a"), 5, 0, time.Second)
	ok("put", err)
	_, _, err = set.Reserve(time.Second)
	ok("reserve", err)
	fails("delete", other.Delete(id), beanstalk.ErrNotFound)
	fails("touch", other.Touch(id), beanstalk.ErrNotFound)
	_, _, err = set.Reserve(time.Second)
	fails("reserve", err, beanstalk.ErrDeadline)
	ok("delete", conn.Delete(id))
}

func pause(tube *beanstalk.Tube, set *beanstalk.TubeSet) {
	ok("pause-tube", tube.Pause(time.Second))
	id := put(tube, "a", 5, 0)
	_, _, err := set.Reserve(0)
	fails("reserve", err, beanstalk.ErrTimeout)
	found, _, err := set.Reserve(5 * time.Second)
	ok("reserve", err)
	check("reserve", found, id)
	ok("delete", tube.Conn.Delete(id))
}

func limits(tube *beanstalk.Tube) {
	_, err := tube.Put(make([]byte, 1<<20+1), 0, 0, time.Second)
	fails("put", err, beanstalk.ErrJobTooBig)
	id := put(tube, string(make([]byte, 1<<20)), 0, 0)
	ok("delete", tube.Conn.Delete(id))
}
