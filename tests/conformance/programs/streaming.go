// Apache's Go client: sends and consumes without end, while nodes die.
// Arguments: HOST:PORT[;HOST:PORT...]. Prints "ready" once messages come through; ends a while after
// its input does, with one line of JSON: how many were acknowledged, those of them that did not come,
// and how many sends failed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config(group string) *rmq.Config {
	return &rmq.Config{
		Endpoint:      os.Args[1],
		ConsumerGroup: group,
		Credentials:   &credentials.SessionCredentials{},
	}
}

func main() {
	os.Setenv(rmq.ENABLE_CONSOLE_APPENDER, "false")
	os.Setenv(rmq.CLIENT_LOG_LEVEL, "error")
	rmq.EnableSsl = false
	rmq.ResetLogger()
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics("S"))
	must(err)
	must(producer.Start())
	var received sync.Map
	var count atomic.Int64
	push, err := rmq.NewPushConsumer(config("g"),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{"S": rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
				number, _ := strconv.Atoi(string(view.GetBody()))
				received.Store(number, true)
				count.Add(1)
				return rmq.SUCCESS
			},
		}))
	must(err)
	must(push.Start())
	var over atomic.Bool
	go func() {
		io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	acknowledged := []int{}
	ready := false
	failed := 0
	for number := 0; !over.Load(); number++ {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := producer.Send(ctx, &rmq.Message{Topic: "S", Body: []byte(strconv.Itoa(number))})
		cancel()
		if err == nil {
			acknowledged = append(acknowledged, number)
		} else {
			failed++
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(5 * time.Millisecond)
		if !ready && len(acknowledged) > 50 && count.Load() > 20 {
			ready = true
			fmt.Println("ready")
		}
	}
	missing := []int{}
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		missing = []int{}
		for _, number := range acknowledged {
			if _, found := received.Load(number); !found {
				missing = append(missing, number)
			}
		}
		if len(missing) == 0 {
			break
		}
	}
	line, err := json.Marshal(map[string]any{
		"acknowledged": len(acknowledged), "failed": failed, "missing": missing,
	})
	must(err)
	fmt.Println(string(line))
	os.Exit(0)
}
