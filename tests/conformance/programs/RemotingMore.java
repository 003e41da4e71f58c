// Apache's classic client: transactions, orderly and broadcasting consumers, a pull consumer, queries.
// Arguments: HOST:PORT of a name server. Prints one line of JSON.

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class RemotingMore {
    static final int QUEUES = 4, ORDERED = 200;
    // A producer is known once it sends to a broker: it would tell it 30 s later, and on a slow
    // machine a consumer that has just begun may have to tell what it reads once more.
    static final int HEARTBEAT_MS = 500;
    static final int SEND_MS = 30_000; // a send that is tried again may be stored twice
    static String server;

    static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static void until(java.util.function.BooleanSupplier done) throws Exception {
        long end = System.currentTimeMillis() + 120_000;
        while (!done.getAsBoolean() && System.currentTimeMillis() < end) {
            Thread.sleep(20);
        }
    }

    static DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(server);
        made.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return made;
    }

    // The class of the model is in another package in RocketMQ 5.
    static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (Method one : consumer.getClass().getMethods()) {
            if (one.getName().equals("setMessageModel")) {
                one.invoke(consumer, one.getParameterTypes()[0].getField("BROADCASTING").get(null));
            }
        }
    }

    static Set<String> collecting(DefaultMQPushConsumer consumer) {
        Set<String> found = Collections.synchronizedSet(new TreeSet<>());
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> found.add(body(one)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return found;
    }

    public static void main(String[] arguments) throws Exception {
        server = arguments[0];
        Map<String, AtomicInteger> asked = new ConcurrentHashMap<>();
        TransactionMQProducer producer = new TransactionMQProducer("transactions");
        producer.setNamesrvAddr(server);
        producer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        producer.setSendMsgTimeout(SEND_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message one, Object state) {
                return (LocalTransactionState) state;
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt one) {
                // Where this program stands still, it is asked about what it is about to decide.
                if (body(one).equals("committed") || body(one).equals("undone")) {
                    return body(one).equals("committed") ? LocalTransactionState.COMMIT_MESSAGE
                        : LocalTransactionState.ROLLBACK_MESSAGE;
                }
                asked.computeIfAbsent(body(one), name -> new AtomicInteger()).incrementAndGet();
                return body(one).equals("asked") && one.getTopic().equals("X")
                    ? LocalTransactionState.COMMIT_MESSAGE
                    : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        producer.start();

        DefaultMQPushConsumer paid = consumer("paid");
        paid.subscribe("X", "*");
        Set<String> committed = collecting(paid);
        paid.start();
        producer.sendMessageInTransaction(message("X", "committed"), LocalTransactionState.COMMIT_MESSAGE);
        producer.sendMessageInTransaction(message("X", "undone"), LocalTransactionState.ROLLBACK_MESSAGE);
        producer.sendMessageInTransaction(message("X", "asked"), LocalTransactionState.UNKNOW);
        producer.sendMessageInTransaction(message("X", "doubted"), LocalTransactionState.UNKNOW);

        // In order: each queue's messages, one of them failing once.
        Map<Integer, List<Integer>> ordered = new ConcurrentHashMap<>();
        AtomicInteger failures = new AtomicInteger(), came = new AtomicInteger();
        DefaultMQPushConsumer orderly = consumer("orderly");
        orderly.subscribe("O", "*");
        orderly.setSuspendCurrentQueueTimeMillis(50);
        orderly.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt one : messages) {
                int number = Integer.parseInt(body(one));
                if (number == ORDERED / 2 && failures.getAndIncrement() == 0) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                ordered.computeIfAbsent(one.getQueueId(), id -> new ArrayList<>()).add(number);
                came.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        orderly.setConsumeMessageBatchMaxSize(1);
        orderly.start();
        for (int k = 0; k < ORDERED; k++) {
            producer.send(message("O", "" + k), (queues, one, key) -> queues.get((int) key % queues.size()), k);
        }

        // Two clients that both get everything; a third one with an SQL expression.
        List<DefaultMQPushConsumer> others = new ArrayList<>();
        List<Set<String>> all = new ArrayList<>();
        for (String name : new String[] {"one", "two"}) {
            DefaultMQPushConsumer each = consumer("everybody");
            each.setInstanceName(name);
            broadcast(each);
            each.subscribe("B", "*");
            all.add(collecting(each));
            each.start();
            others.add(each);
        }
        DefaultMQPushConsumer sql = consumer("sql");
        sql.subscribe("B", MessageSelector.bySql("number > 7"));
        Set<String> large = collecting(sql);
        sql.start();
        others.add(sql);
        SendResult last = null;
        for (int k = 0; k < 10; k++) {
            Message one = message("B", "" + k);
            one.putUserProperty("number", "" + k);
            one.setKeys("key" + k);
            last = producer.send(one);
        }

        DefaultLitePullConsumer pulling = new DefaultLitePullConsumer("pulling");
        pulling.setNamesrvAddr(server);
        pulling.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        pulling.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        pulling.subscribe("B", "*");
        pulling.start();
        Set<String> pulled = new TreeSet<>();
        until(() -> {
            pulling.poll(500).forEach(one -> pulled.add(body(one)));
            return pulled.size() == 10;
        });

        until(() -> came.get() == ORDERED && committed.size() == 2 && asked.size() == 2
            && all.get(0).size() == 10 && all.get(1).size() == 10 && large.size() == 2);
        Thread.sleep(300); // more would be too much
        QueryResult byKey = producer.queryMessage("B", "key3", 10, 0, System.currentTimeMillis() + 60_000);
        MessageExt byId = producer.viewMessage("B", last.getMsgId());
        boolean inOrder = ordered.values().stream().allMatch(row -> {
            List<Integer> sorted = new ArrayList<>(row);
            Collections.sort(sorted);
            return sorted.equals(row);
        });
        System.out.printf(
            "{\"committed\": \"%s\", \"asked\": \"%s\", \"ordered\": [%d, %d, %b, %d], "
            + "\"broadcast\": [%d, %d], \"sql\": \"%s\", \"pulled\": %d, \"by_key\": \"%s\", "
            + "\"by_id\": \"%s\"}%n",
            String.join(" ", committed), String.join(" ", new TreeSet<>(asked.keySet())),
            came.get(), ordered.size(), inOrder, failures.get(),
            all.get(0).size(), all.get(1).size(), String.join(" ", large), pulled.size(),
            body(byKey.getMessageList().get(0)), body(byId));
        producer.shutdown();
        paid.shutdown();
        orderly.shutdown();
        others.forEach(DefaultMQPushConsumer::shutdown);
        pulling.shutdown();
        System.exit(0);
    }
}
