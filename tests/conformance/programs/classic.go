// Apache's classic Go client: sends, consumes, and lists topics and groups.
// Arguments: HOST:PORT of a name server. Prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const ALL = 20

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	server := os.Args[1]
	rlog.SetLogLevel("error")
	names := primitive.NewPassthroughResolver([]string{server})
	found, all, lock := map[string]bool{}, make(chan bool), sync.Mutex{}
	reading, err := rocketmq.NewPushConsumer(
		consumer.WithGroupName("go"), consumer.WithNsResolver(names),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, one := range messages {
			found[string(one.Body)] = true
		}
		if len(found) == ALL {
			select {
			case all <- true:
			default:
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	check(reading.Subscribe("T", consumer.MessageSelector{}, take))
	check(reading.Start())
	sending, err := rocketmq.NewProducer(producer.WithNsResolver(names), producer.WithGroupName("p"))
	check(err)
	check(sending.Start())
	ids, batch := map[string]bool{}, []*primitive.Message{}
	for k := 0; k < ALL/2; k++ {
		sent, err := sending.SendSync(context.Background(),
			primitive.NewMessage("T", []byte(fmt.Sprintf("body%d", k))))
		check(err)
		ids[sent.OffsetMsgID] = true
		batch = append(batch, primitive.NewMessage("T", []byte(fmt.Sprintf("batch%d", k))))
	}
	sent, err := sending.SendSync(context.Background(), batch...)
	check(err)
	for _, id := range strings.Split(sent.OffsetMsgID, ",") {
		ids[id] = true
	}
	select {
	case <-all:
	case <-time.After(90 * time.Second):
	}
	asking, err := admin.NewAdmin(admin.WithResolver(names))
	check(err)
	topics, err := asking.FetchAllTopicList(context.Background())
	check(err)
	rows, err := asking.GetAllSubscriptionGroup(context.Background(), server, 30*time.Second)
	check(err)
	groups := []string{}
	for name := range rows.SubscriptionGroupTable {
		groups = append(groups, name)
	}
	sort.Strings(groups)
	hasTopic := false
	for _, name := range topics.TopicList {
		hasTopic = hasTopic || name == "T"
	}
	lock.Lock()
	line, err := json.Marshal(map[string]any{
		"found": len(found), "ids": len(ids), "groups": groups, "topic": hasTopic})
	check(err)
	fmt.Println(string(line))
	os.Exit(0)
}
