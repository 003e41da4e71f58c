// Apache's Go client and lite topics. Argument: HOST:PORT. Prints one line of JSON: what was heard
// of each lite topic, in order.
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

var (
	lock  sync.Mutex
	heard = map[string][]string{}
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config(group string) *rmq.Config {
	return &rmq.Config{
		Endpoint: os.Args[1], ConsumerGroup: group, Credentials: &credentials.SessionCredentials{},
	}
}

func until(wanted int) {
	for end := time.Now().Add(120 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		lock.Lock()
		count := 0
		for _, bodies := range heard {
			count += len(bodies)
		}
		lock.Unlock()
		if count >= wanted {
			return
		}
	}
}

func main() {
	os.Setenv(rmq.ENABLE_CONSOLE_APPENDER, "false")
	os.Setenv(rmq.CLIENT_LOG_LEVEL, "error")
	rmq.ResetLogger()
	rmq.EnableSsl = false
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics("Lite"))
	must(err)
	must(producer.Start())
	send := func(lite string, number int) {
		message := &rmq.Message{Topic: "Lite", Body: []byte(fmt.Sprintf("%s%d", lite, number))}
		message.SetLiteTopic(lite)
		_, err := producer.Send(context.TODO(), message)
		must(err)
	}
	for _, lite := range []string{"a", "b", "c"} {
		for k := 0; k < 3; k++ {
			send(lite, k)
		}
	}
	consumer, err := rmq.NewLitePushConsumer(config("lite"),
		rmq.NewLitePushConsumerConfig("Lite", 30*time.Second),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
				lock.Lock()
				defer lock.Unlock()
				body := string(view.GetBody())
				heard[view.GetLiteTopic()] = append(heard[view.GetLiteTopic()], body)
				if body == "a1" && view.GetDeliveryAttempt() == 1 {
					return rmq.FAILURE
				}
				return rmq.SUCCESS
			},
		}))
	must(err)
	must(consumer.Start())
	must(consumer.SubscribeLite("a"))
	must(consumer.SubscribeLite("b"))
	until(7)
	must(consumer.UnSubscribeLite("b"))
	send("b", 3)
	send("a", 3)
	until(8)
	time.Sleep(time.Second)
	lock.Lock()
	line, err := json.Marshal(heard)
	must(err)
	fmt.Println(string(line))
	os.Exit(0)
}
