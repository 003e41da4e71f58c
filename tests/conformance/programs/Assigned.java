// Apache's classic client of RocketMQ 5 with setClientRebalance(false): the node assigns queues, read by PULL or POP.
// Arguments: HOST:PORT of a name server, PULL or POP, and hold (takes a message, says so, and is never done with it)
// or read. Topics A (8 queues) and O, and the groups, exist. Prints one line of JSON.

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;

public class Assigned {
    static final int ALL = 400; // and the one that is held
    static final int INVISIBLE_MS = 5000; // the least that clients ask for
    static String server;
    static MessageRequestMode mode;

    interface Listener {
        ConsumeConcurrentlyStatus take(MessageExt one) throws Exception;
    }

    static DefaultMQPushConsumer made(String group, String topic, String tags, String name) throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(server);
        made.setInstanceName(group + name);
        made.setHeartbeatBrokerInterval(500);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.setClientRebalance(false);
        made.setPopInvisibleTime(INVISIBLE_MS);
        made.setPullBatchSize(4);
        made.setPopBatchNums(4);
        if (group.equals("dies") && mode == MessageRequestMode.PULL) {
            made.setMaxReconsumeTimes(0); // with it, clients do not pop; there the group's number counts
        }
        made.subscribe(topic, tags);
        return made;
    }

    static DefaultMQPushConsumer consumer(String group, String topic, String tags, String name, Listener listener)
            throws Exception {
        DefaultMQPushConsumer made = made(group, topic, tags, name);
        made.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                return listener.take(messages.get(0));
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        made.start();
        return made;
    }

    static void until(java.util.function.BooleanSupplier done) throws Exception {
        long end = System.currentTimeMillis() + 120_000;
        while (!done.getAsBoolean() && System.currentTimeMillis() < end) {
            Thread.sleep(20);
        }
    }

    static String body(MessageExt one) {
        return new String(one.getBody(), StandardCharsets.UTF_8);
    }

    static void setMode(DefaultMQProducer producer, String topic, String group) throws Exception {
        var factory = producer.getDefaultMQProducerImpl().getMqClientFactory();
        String broker = factory.findBrokerAddrByTopic(topic);
        factory.getMQClientAPIImpl().setMessageRequestMode(broker, topic, group, mode, 0, 10_000);
    }

    static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer made = new DefaultMQProducer("producers");
        made.setNamesrvAddr(server);
        made.setSendMsgTimeout(30_000);
        made.start();
        for (String topic : List.of("A", "O")) {
            until(() -> hasRoute(made, topic));
        }
        return made;
    }

    static boolean hasRoute(DefaultMQProducer producer, String topic) {
        var factory = producer.getDefaultMQProducerImpl().getMqClientFactory();
        factory.updateTopicRouteInfoFromNameServer(topic); // without it, a broker is asked as a name server
        return factory.findBrokerAddrByTopic(topic) != null;
    }

    /** Takes a message and keeps it until this process is killed. */
    static void hold() throws Exception {
        DefaultMQProducer producer = producer();
        setMode(producer, "A", "killed");
        consumer("killed", "A", "*", "holds", one -> {
            System.out.println("held " + body(one));
            Thread.sleep(600_000);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.send(new Message("A", "held", "held".getBytes(StandardCharsets.UTF_8)));
        Thread.sleep(120_000); // it is killed before
    }

    static Map<String, AtomicInteger> counts() {
        return new ConcurrentHashMap<>();
    }

    static void count(Map<String, AtomicInteger> seen, MessageExt one) {
        seen.computeIfAbsent(body(one), name -> new AtomicInteger()).incrementAndGet();
    }

    static int sum(Map<String, AtomicInteger> seen) {
        return seen.values().stream().mapToInt(AtomicInteger::get).sum();
    }

    /** Whether each queue of O came in its order, with a message that failed once. */
    static boolean inOrder() throws Exception {
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        Set<String> failed = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer made = made("ordered", "O", "*", "");
        made.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt one : messages) {
                if (body(one).equals("3") && failed.add("3")) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                seen.add(one.getQueueId() + " " + body(one));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        made.setConsumeMessageBatchMaxSize(1);
        made.start();
        until(() -> seen.size() >= 20);
        made.shutdown();
        for (int queue = 0; queue < 2; queue++) {
            int before = -1;
            for (String one : seen) {
                String[] words = one.split(" ");
                if (Integer.parseInt(words[0]) == queue) {
                    if (Integer.parseInt(words[1]) < before) {
                        return false;
                    }
                    before = Integer.parseInt(words[1]);
                }
            }
        }
        return seen.size() == 20 && failed.size() == 1;
    }

    public static void main(String[] arguments) throws Exception {
        server = arguments[0];
        mode = MessageRequestMode.valueOf(arguments[1]);
        try {
            if (arguments[2].equals("hold")) {
                hold();
            } else {
                read();
                System.exit(0);
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
        System.exit(1); // threads of clients would keep it alive
    }

    static void read() throws Exception {
        DefaultMQProducer producer = producer();
        for (String group : List.of("shared", "reds", "fails", "dies", "killed")) {
            setMode(producer, "A", group);
        }
        for (int number = 0; number < ALL; number++) {
            Message made = new Message("A", number % 2 == 0 ? "red" : "blue",
                ("body" + number).getBytes(StandardCharsets.UTF_8));
            producer.send(made);
        }
        List<MessageQueue> ordered = producer.fetchPublishMessageQueues("O");
        for (int number = 0; number < 20; number++) {
            Message made = new Message("O", ("" + number).getBytes(StandardCharsets.UTF_8));
            producer.send(made, (queues, message, argument) -> queues.get((int) argument % 2), number);
        }
        Map<String, AtomicInteger> one = counts(), other = counts(), reds = counts(), killed = counts();
        List<String> attempts = Collections.synchronizedList(new ArrayList<>());
        AtomicInteger dying = new AtomicInteger();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        consumers.add(consumer("shared", "A", "*", "one", message -> {
            count(one, message);
            Thread.sleep(10);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }));
        consumers.add(consumer("shared", "A", "*", "other", message -> {
            count(other, message);
            Thread.sleep(10);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }));
        consumers.add(consumer("reds", "A", "red", "", message -> {
            count(reds, message);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }));
        consumers.add(consumer("fails", "A", "*", "", message -> {
            if (!body(message).equals("body7")) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            attempts.add(message.getTopic() + message.getReconsumeTimes());
            return attempts.size() < 2
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }));
        consumers.add(consumer("dies", "A", "*", "", message -> {
            if (!body(message).equals("body9")) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            dying.incrementAndGet();
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }));
        consumers.add(consumer("killed", "A", "held", "", message -> {
            count(killed, message);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }));
        boolean inOrder = inOrder();
        until(() -> sum(one) + sum(other) > ALL && sum(reds) >= ALL / 2 && attempts.size() >= 2
            && !killed.isEmpty() && dying.get() > 0);
        int before = sum(one) + sum(other);
        Set<String> all = ConcurrentHashMap.newKeySet();
        all.addAll(one.keySet());
        all.addAll(other.keySet());
        all.remove("held");
        Thread.sleep(1000); // what would come twice may come now
        int popping = 0;
        for (DefaultMQPushConsumer made : consumers) {
            popping += made.getDefaultMQPushConsumerImpl().getRebalanceImpl().getPopProcessQueueTable().size();
            made.shutdown();
        }
        producer.shutdown();
        System.out.println(String.format(
            "{\"all\": %d, \"times\": %d, \"both\": %b, \"reds\": %d, \"attempts\": \"%s\", \"ordered\": %b, "
            + "\"killed\": %d, \"dying\": %d, \"popping\": %d}",
            all.size(), before, sum(one) > 0 && sum(other) > 0, reds.size(), String.join(" ", attempts), inOrder,
            killed.size(), dying.get(), popping));
    }
}
