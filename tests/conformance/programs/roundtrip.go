// Apache's Go client against a node: every kind of message there and back.
// Arguments: HOST:PORT. Prints one line of JSON: what was received.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
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

func message(topic string, body string) *rmq.Message {
	made := &rmq.Message{Topic: topic, Body: []byte(body)}
	made.SetTag("A")
	made.SetKeys("k-" + body)
	made.AddProperty("color", "blue")
	return made
}

func consume(config *rmq.Config, topic string, wanted int) []string {
	consumer, err := rmq.NewSimpleConsumer(config,
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{
			topic: rmq.NewFilterExpression("A"),
		}))
	must(err)
	must(consumer.Start())
	defer consumer.GracefulStop()
	found := []string{}
	end := time.Now().Add(120 * time.Second)
	for len(found) < wanted && time.Now().Before(end) {
		views, err := consumer.Receive(context.TODO(), 16, 15*time.Second)
		if err != nil {
			continue // nothing new within the wait
		}
		for _, view := range views {
			must(consumer.Ack(context.TODO(), view))
			found = append(found, string(view.GetBody()))
		}
	}
	return found
}

func main() {
	os.Setenv(rmq.ENABLE_CONSOLE_APPENDER, "false")
	os.Setenv(rmq.CLIENT_LOG_LEVEL, "error")
	rmq.EnableSsl = false
	rmq.ResetLogger()
	config := func(group string) *rmq.Config {
		return &rmq.Config{
			Endpoint:      os.Args[1],
			ConsumerGroup: group,
			Credentials:   &credentials.SessionCredentials{},
		}
	}
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics("T", "Fifo"),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(view *rmq.MessageView) rmq.TransactionResolution {
				// A client that stands still is also asked about what it is about to decide.
				if string(view.GetBody()) == "rolled back" {
					return rmq.ROLLBACK
				}
				return rmq.COMMIT
			},
		}))
	must(err)
	must(producer.Start())
	ctx := context.TODO()
	for k := 0; k < 3; k++ {
		_, err := producer.Send(ctx, message("T", fmt.Sprintf("normal%d", k)))
		must(err)
	}
	done := make(chan error, 1)
	producer.SendAsync(ctx, message("T", "async"),
		func(ctx context.Context, receipts []*rmq.SendReceipt, err error) { done <- err })
	must(<-done)
	for k := 0; k < 5; k++ {
		fifo := message("Fifo", fmt.Sprintf("fifo%d", k))
		fifo.SetMessageGroup("one")
		_, err := producer.Send(ctx, fifo)
		must(err)
	}
	delayed := message("T", "delayed")
	delayed.SetDelayTimestamp(time.Now().Add(2 * time.Second))
	_, err = producer.Send(ctx, delayed)
	must(err)
	for _, body := range []string{"committed", "rolled back", "asked"} {
		transaction := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(ctx, message("T", body), transaction)
		must(err)
		if body == "committed" {
			must(transaction.Commit())
		} else if body == "rolled back" {
			must(transaction.RollBack())
		}
	}
	received := consume(config("g-go"), "T", 7)
	sort.Strings(received)
	ordered := consume(config("fifo"), "Fifo", 5)
	line, err := json.Marshal(map[string][]string{"received": received, "ordered": ordered})
	must(err)
	fmt.Println(string(line))
	producer.GracefulStop()
}
