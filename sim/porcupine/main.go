// Porcupine checks histories of a replicated log for linearizability, queue by queue.
//
// It reads JSON lines from standard input, one operation each:
//
//	{"queue": "T/0", "op": "append", "begin": 1, "end": 5, "offset": 3, "bodies": ["x"]}
//	{"queue": "T/0", "op": "append", "begin": 1, "end": -1, "offset": -1, "bodies": ["y"]}
//	{"queue": "T/0", "op": "read", "begin": 6, "end": 7, "offset": 3, "bodies": ["x"]}
//	{"queue": "T/0", "op": "commit", "begin": 6, "end": 7, "offset": 4, "group": "g"}
//	{"queue": "T/0", "op": "committed", "begin": 8, "end": 9, "offset": 4, "group": "g"}
//
// An append with offset -1 has an unknown outcome: it may be made at any time after it began, or
// never. A read with bodies saw exactly these from its offset on. It prints one line of JSON:
// {"operations": n, "queues": n, "result": "Ok" | "Illegal" | "Unknown", "queue": "the wrong one"}.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Queue  string   `json:"queue"`
	Op     string   `json:"op"`
	Begin  int64    `json:"begin"`
	End    int64    `json:"end"`
	Offset int      `json:"offset"`
	Bodies []string `json:"bodies"`
	Group  string   `json:"group"`
}

// A state is the log of one queue, and where each group has committed. It is never changed.
// The log is a list from its newest message back, so that an append shares what was before.
type entry struct {
	body   string
	before *entry
}

type state struct {
	newest    *entry
	length    int
	hash      uint64
	committed string // "group offset" rows, sorted
}

// holds tells whether exactly these messages stand at an offset and after it.
func (s state) holds(offset int, bodies []string) bool {
	end := offset + len(bodies)
	if offset < 0 || end > s.length {
		return false
	}
	found := s.newest
	for k := s.length; k > end; k-- {
		found = found.before
	}
	for k := len(bodies) - 1; k >= 0; k-- {
		if found.body != bodies[k] {
			return false
		}
		found = found.before
	}
	return true
}

func (s state) appended(bodies []string) state {
	for _, body := range bodies {
		s.newest = &entry{body, s.newest}
		s.length++
		for _, letter := range []byte(body + "\n") {
			s.hash = (s.hash ^ uint64(letter)) * 1099511628211
		}
	}
	return s
}

func (s state) commits() map[string]int {
	found := map[string]int{}
	for _, row := range strings.Split(s.committed, "\n") {
		var group string
		var offset int
		if _, err := fmt.Sscanf(row, "%s %d", &group, &offset); err == nil {
			found[group] = offset
		}
	}
	return found
}

func (s state) commit(group string, offset int) state {
	found := s.commits()
	found[group] = offset
	rows := make([]string, 0, len(found))
	for name, at := range found {
		rows = append(rows, fmt.Sprintf("%s %d", name, at))
	}
	sort.Strings(rows)
	s.committed = strings.Join(rows, "\n")
	return s
}

func step(before, input, _ interface{}) (bool, interface{}) {
	s, o := before.(state), input.(operation)
	switch o.Op {
	case "append":
		// An unknown one that was never made is made in the end, where nobody sees it.
		return o.Offset < 0 || o.Offset == s.length, s.appended(o.Bodies)
	case "read":
		return s.holds(o.Offset, o.Bodies), s
	case "commit":
		return true, s.commit(o.Group, o.Offset)
	case "committed":
		at, there := s.commits()[o.Group]
		if !there {
			at = -1
		}
		return at == o.Offset, s
	}
	return false, s
}

func equal(one, other interface{}) bool {
	a, b := one.(state), other.(state)
	return a.length == b.length && a.hash == b.hash && a.committed == b.committed
}

func main() {
	queues := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	count := 0
	for lines.Scan() {
		var o operation
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			fmt.Fprintf(os.Stderr, "line %d is no operation: %v\n", count+1, err)
			os.Exit(2)
		}
		if o.End < 0 {
			o.End = math.MaxInt64 // nobody was told: it may happen at any time
		}
		queues[o.Queue] = append(queues[o.Queue], porcupine.Operation{
			ClientId: count, Input: o, Call: o.Begin, Return: o.End,
		})
		count++
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	model := porcupine.Model{
		Init:  func() interface{} { return state{hash: 14695981039346656037} },
		Step:  step,
		Equal: equal,
	}
	names := make([]string, 0, len(queues))
	for name := range queues {
		names = append(names, name)
	}
	sort.Strings(names)
	result, wrong := porcupine.Ok, ""
	for _, name := range names {
		found := porcupine.CheckOperationsTimeout(model, queues[name], 60*time.Second)
		if found == porcupine.Illegal || (found == porcupine.Unknown && result == porcupine.Ok) {
			result, wrong = found, name
		}
		if found == porcupine.Illegal {
			break
		}
	}
	told, _ := json.Marshal(map[string]interface{}{
		"operations": count, "queues": len(names), "result": string(result), "queue": wrong,
	})
	fmt.Println(string(told))
}
