// Apache's Go client over TLS, with keys, in a namespace: what goes wrong and is tried again.
// Arguments: HOST:PORT NAMESPACE ACCESS_KEY SECRET_KEY. Prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
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
		NameSpace:     os.Args[2],
		ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{
			AccessKey: os.Args[3], AccessSecret: os.Args[4],
		},
	}
}

func main() {
	os.Setenv(rmq.ENABLE_CONSOLE_APPENDER, "false")
	os.Setenv(rmq.CLIENT_LOG_LEVEL, "error")
	rmq.ResetLogger()
	ctx := context.TODO()
	all := map[string]*rmq.FilterExpression{"T": rmq.SUB_ALL}
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics("T"))
	must(err)
	must(producer.Start())

	delayed := &rmq.Message{Topic: "T", Body: []byte("recalled")}
	delayed.SetDelayTimestamp(time.Now().Add(time.Minute))
	receipts, err := producer.Send(ctx, delayed)
	must(err)
	recalled, err := producer.Recall(ctx, "T", receipts[0].RecallHandle)
	must(err)

	simple, err := rmq.NewSimpleConsumer(config("simple"),
		rmq.WithSimpleAwaitDuration(5*time.Second), rmq.WithSimpleSubscriptionExpressions(all))
	must(err)
	must(simple.Start())
	next := func() *rmq.MessageView {
		end := time.Now().Add(120 * time.Second)
		for time.Now().Before(end) {
			views, err := simple.Receive(ctx, 1, 30*time.Second)
			if err == nil && len(views) > 0 {
				return views[0]
			}
		}
		must(fmt.Errorf("nothing came"))
		return nil
	}
	_, err = producer.Send(ctx, &rmq.Message{Topic: "T", Body: []byte("twice")})
	must(err)
	first := next()
	must(simple.ChangeInvisibleDuration(first, time.Second))
	second := next()
	must(simple.Ack(ctx, first)) // refused, but this client does not look at the status
	must(simple.Ack(ctx, second))
	simple.GracefulStop()

	var lock sync.Mutex
	attempts := []int32{}
	push, err := rmq.NewPushConsumer(config("g"),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(all),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
				if string(view.GetBody()) != "poison" {
					return rmq.SUCCESS
				}
				lock.Lock()
				defer lock.Unlock()
				attempts = append(attempts, view.GetDeliveryAttempt())
				return rmq.FAILURE
			},
		}))
	must(err)
	must(push.Start())
	_, err = producer.Send(ctx, &rmq.Message{Topic: "T", Body: []byte("poison")})
	must(err)
	for end := time.Now().Add(120 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		lock.Lock()
		done := len(attempts) >= 3
		lock.Unlock()
		if done {
			break
		}
	}
	time.Sleep(time.Second)
	line, err := json.Marshal(map[string]any{
		"recalled":   recalled == receipts[0].MessageID,
		"deliveries": []int32{first.GetDeliveryAttempt(), second.GetDeliveryAttempt()},
		"attempts":   attempts,
	})
	must(err)
	fmt.Println(string(line))
	os.Exit(0)
}
