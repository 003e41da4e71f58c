// Apache's classic client against two sides at once: what it is answered, and what it is delivered.
// Arguments: HOST:PORT of two name servers. Prints one line of JSON: for each, texts by name.
// Topics J* with 4 queues must be there, JClosed with perm 4; the third delay level is short.

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public class Differential {
    static final int HEARTBEAT_MS = 500, SECONDS = 40, ORDERED = 50, QUIET_MS = 500;
    static final int TIMEOUT_MS = 20_000; // on a slow machine
    static final String BROKER = "broker-a";
    static final String[] TOPICS = {"JA", "JO", "JR", "JX", "JB", "JD", "JF", "JN"};
    // How far a queue had grown, and how often a producer was asked, are questions of time.
    static final List<String> VARYING =
        Arrays.asList("CONSUME_START_TIME", "MAX_OFFSET", "TRANSACTION_CHECK_TIMES");

    interface Part { void run() throws Exception; }

    final String server, name;
    final Map<String, String> seen = new ConcurrentSkipListMap<>();
    final Map<String, String> ids = new ConcurrentHashMap<>();
    final AtomicInteger instances = new AtomicInteger();
    DefaultMQProducer producer;

    Differential(String name, String server) {
        this.name = name;
        this.server = server;
    }

    // -- notes ---------------------------------------------------------------------------------

    void note(String what, Object value) {
        String text = String.valueOf(value);
        seen.put(what, text.substring(0, Math.min(200, text.length())));
    }

    void sent(String what, SendResult result) {
        note(what + ": status", result.getSendStatus());
        note(what + ": queue", result.getMessageQueue().getQueueId());
        note(what + ": broker", result.getMessageQueue().getBrokerName());
        note(what + ": region", result.getRegionId());
        note(what + ": trace", result.isTraceOn());
        note(what + ": transactionId", result.getTransactionId());
        note(what + ": id", result.getMsgId());
        note(what + ": offset id", result.getOffsetMsgId());
        int number = 0;
        for (String one : result.getMsgId().split(",")) {
            ids.put(one, "<id " + number++ + " of " + what + ">");
        }
    }

    void message(String what, MessageExt one) {
        note(what + ": topic", one.getTopic());
        note(what + ": queue", one.getQueueId());
        note(what + ": tags, keys", one.getTags() + ", " + one.getKeys());
        note(what + ": flag, sysFlag", one.getFlag() + ", " + one.getSysFlag());
        note(what + ": reconsumeTimes", one.getReconsumeTimes());
        note(what + ": delay level", one.getDelayTimeLevel());
        note(what + ": wait", one.isWaitStoreMsgOK());
        note(what + ": id", one.getMsgId());
        note(what + ": transactionId", one.getTransactionId());
        note(what + ": buyer", one.getBuyerId());
        note(what + ": body", one.getBody().length + " " + body(one));
        for (Map.Entry<String, String> each : one.getProperties().entrySet()) {
            String value = each.getValue();
            if (VARYING.contains(each.getKey())) {
                value = "<number>";
            }
            note(what + ": property " + each.getKey(), value);
        }
    }

    void failure(String what, Callable<Object> asked) {
        try {
            note(what, asked.call());
        } catch (MQBrokerException error) {
            note(what, "MQBrokerException " + error.getResponseCode());
        } catch (MQClientException error) {
            Throwable cause = error.getCause();
            String more = cause instanceof MQBrokerException
                ? " for " + ((MQBrokerException) cause).getResponseCode() : "";
            note(what, "MQClientException " + error.getResponseCode() + more);
        } catch (Exception error) {
            note(what, error.getClass().getSimpleName());
        }
    }

    static String body(MessageExt one) {
        byte[] found = one.getBody();
        return new String(found, 0, Math.min(40, found.length), StandardCharsets.UTF_8);
    }

    // -- clients -------------------------------------------------------------------------------

    static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static Message full(String topic, String body) {
        Message made = message(topic, body);
        made.setTags("red");
        made.setKeys(Arrays.asList("k-" + body, "all"));
        made.setFlag(7);
        made.setBuyerId("buyer");
        made.putUserProperty("own", "value of " + body);
        return made;
    }

    SendResult to(int queue, Message one) throws Exception {
        return producer.send(one, new MessageQueue(one.getTopic(), BROKER, queue));
    }

    String instance() {
        return name + instances.incrementAndGet();
    }

    DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(server);
        made.setInstanceName(instance());
        made.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        made.setMqClientApiTimeout(TIMEOUT_MS);
        made.setPollNameServerInterval(1000);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.setConsumeThreadMin(1);
        made.setConsumeThreadMax(1);
        return made;
    }

    // Collects what is delivered; the messages in the order in which they came.
    static List<MessageExt> collecting(DefaultMQPushConsumer consumer) throws Exception {
        List<MessageExt> found = Collections.synchronizedList(new ArrayList<>());
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            found.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return found;
    }

    // The class of the model is in another package in RocketMQ 5.
    static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (Method one : consumer.getClass().getMethods()) {
            if (one.getName().equals("setMessageModel")) {
                one.invoke(consumer, one.getParameterTypes()[0].getField("BROADCASTING").get(null));
            }
        }
    }

    static void until(BooleanSupplier done) throws InterruptedException {
        long end = System.currentTimeMillis() + SECONDS * 1000;
        while (!done.getAsBoolean() && System.currentTimeMillis() < end) {
            Thread.sleep(20);
        }
    }

    static List<String> bodies(Collection<MessageExt> messages) {
        List<String> found = new ArrayList<>();
        messages.forEach(one -> found.add(body(one)));
        return found;
    }

    // -- parts ---------------------------------------------------------------------------------

    void sends() throws Exception {
        sent("sent", to(0, full("JA", "plain")));
        Message one = message("JA", "without a wait");
        one.setWaitStoreMsgOK(false);
        sent("sent without a wait", to(0, one));
        char[] large = new char[20_000];
        Arrays.fill(large, 'x');
        sent("sent large", to(0, message("JA", new String(large))));
        CountDownLatch answered = new CountDownLatch(1);
        producer.send(full("JA", "later"), new MessageQueue("JA", BROKER, 0), new SendCallback() {
            @Override public void onSuccess(SendResult result) {
                sent("sent asynchronously", result);
                answered.countDown();
            }

            @Override public void onException(Throwable error) {
                note("sent asynchronously", error);
                answered.countDown();
            }
        });
        answered.await(SECONDS, TimeUnit.SECONDS);
        producer.sendOneway(full("JA", "quietly"), new MessageQueue("JA", BROKER, 0));
        List<Message> batch = new ArrayList<>();
        for (int k = 0; k < 3; k++) {
            batch.add(full("JA", "batch" + k));
        }
        sent("sent in a batch", producer.send(batch, new MessageQueue("JA", BROKER, 1)));
        DefaultMQPushConsumer all = consumer("j-all");
        all.subscribe("JA", "*");
        List<MessageExt> found = collecting(all);
        until(() -> found.size() >= 8);
        Thread.sleep(QUIET_MS);
        note("delivered: bodies", new TreeSet<>(bodies(found)).size() + " of " + found.size());
        for (MessageExt each : found) {
            message("delivered " + body(each), each);
        }
        all.shutdown();
    }

    void order() throws Exception {
        for (int k = 0; k < ORDERED; k++) {
            Message one = message("JO", "" + k);
            one.setKeys("o" + k);
            to(2, one);
        }
        List<String> came = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer orderly = consumer("j-orderly");
        orderly.subscribe("JO", "*");
        orderly.setSuspendCurrentQueueTimeMillis(20);
        orderly.setMaxReconsumeTimes(3);
        orderly.setConsumeMessageBatchMaxSize(1);
        orderly.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt one = messages.get(0);
            came.add(body(one) + "/" + one.getReconsumeTimes());
            boolean fails = body(one).equals("20") && one.getReconsumeTimes() < 2
                || body(one).equals("40");
            return fails ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                : ConsumeOrderlyStatus.SUCCESS;
        });
        orderly.start();
        until(() -> came.contains("49/0"));
        note("in order", String.join(" ", came).hashCode() + " " + came.subList(18, came.size()));
        dead("j-orderly", "o40");
        orderly.shutdown();
    }

    // Looked up, as somebody does who looks for a lost message.
    void dead(String group, String key) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        until(() -> {
            try {
                found.addAll(producer.queryMessage("%DLQ%" + group, key, 8, 0,
                    System.currentTimeMillis() + 60_000).getMessageList());
            } catch (Exception notYet) {
                return false;
            }
            return true;
        });
        note("dead letters of " + group, found.size());
        for (MessageExt one : found) {
            message("dead letter of " + group, one);
        }
    }

    void retries() throws Exception {
        sent("sent to fail", to(1, full("JR", "fails")));
        List<Integer> times = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer failing = consumer("j-failing");
        failing.subscribe("JR", "*");
        failing.setMaxReconsumeTimes(2);
        failing.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt one = messages.get(0);
            times.add(one.getReconsumeTimes());
            message("attempt " + one.getReconsumeTimes(), one);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        failing.start();
        until(() -> times.size() >= 3);
        dead("j-failing", "k-fails");
        note("attempts", times);
        failing.shutdown();
    }

    void transactions() throws Exception {
        TransactionMQProducer decider = new TransactionMQProducer("j-deciders");
        decider.setNamesrvAddr(server);
        decider.setInstanceName(instance());
        decider.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        decider.setMqClientApiTimeout(TIMEOUT_MS);
        decider.setSendMsgTimeout(TIMEOUT_MS);
        decider.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message one, Object state) {
                return (LocalTransactionState) state;
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt one) {
                if (!seen.containsKey("asked for " + body(one) + ": topic")) {
                    message("asked for " + body(one), one);
                }
                switch (body(one)) {
                    case "asked":
                        return LocalTransactionState.COMMIT_MESSAGE;
                    case "committed": // as it is, or is to be: RocketMQ would store it once more
                        return LocalTransactionState.UNKNOW;
                    default:
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                }
            }
        });
        decider.start();
        DefaultMQPushConsumer paid = consumer("j-paid");
        paid.subscribe("JX", "*");
        List<MessageExt> found = collecting(paid);
        Map<String, LocalTransactionState> kinds = new TreeMap<>();
        kinds.put("committed", LocalTransactionState.COMMIT_MESSAGE);
        kinds.put("undone", LocalTransactionState.ROLLBACK_MESSAGE);
        kinds.put("asked", LocalTransactionState.UNKNOW);
        kinds.put("doubted", LocalTransactionState.UNKNOW);
        for (Map.Entry<String, LocalTransactionState> each : kinds.entrySet()) {
            SendResult result = decider.sendMessageInTransaction(
                full("JX", each.getKey()), each.getValue());
            ids.put(result.getMsgId(), "<id of " + each.getKey() + ">");
            note("half " + each.getKey(), result.getSendStatus() + " " + result.getTransactionId());
        }
        until(() -> new TreeSet<>(bodies(found)).size() >= 2 && seen.containsKey("asked for doubted: topic"));
        Thread.sleep(QUIET_MS);
        note("committed", new TreeSet<>(bodies(found)));
        for (MessageExt one : found) {
            message("committed " + body(one), one);
        }
        paid.shutdown();
        decider.shutdown();
        // On a slow machine the others may be asked for, too. Queues are the producer's choice.
        seen.keySet().removeIf(what -> what.startsWith("asked for committed")
            || what.startsWith("asked for undone") || what.matches("(asked for|committed) .*(queue|REAL_QID)"));
    }

    void broadcasts() throws Exception {
        List<DefaultMQPushConsumer> others = new ArrayList<>();
        List<List<String>> came = new ArrayList<>();
        for (int k = 0; k < 2; k++) {
            DefaultMQPushConsumer each = consumer("j-everybody");
            broadcast(each);
            each.subscribe("JB", "*");
            List<String> found = Collections.synchronizedList(new ArrayList<>());
            each.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(one -> found.add(body(one) + "/" + one.getReconsumeTimes()));
                return body(messages.get(0)).equals("3") ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            each.start();
            others.add(each);
            came.add(found);
        }
        for (int k = 0; k < 5; k++) {
            to(k % 4, message("JB", "" + k));
        }
        until(() -> came.get(0).size() >= 5 && came.get(1).size() >= 5);
        Thread.sleep(QUIET_MS);
        for (List<String> found : came) {
            Collections.sort(found);
        }
        note("broadcast", came);
        others.forEach(DefaultMQPushConsumer::shutdown);
    }

    void delays() throws Exception {
        DefaultMQPushConsumer waiting = consumer("j-late");
        waiting.subscribe("JD", "*");
        List<MessageExt> found = collecting(waiting);
        Message late = full("JD", "late");
        late.setDelayTimeLevel(3);
        sent("sent late", to(3, late));
        until(() -> !found.isEmpty());
        message("delivered late", found.get(0));
        waiting.shutdown();
    }

    // Selections, queries, offsets and pulls of one topic with 10 messages in queue 0.
    void reads() throws Exception {
        SendResult last = null;
        for (int k = 0; k < 10; k++) {
            Message one = full("JF", "" + k);
            one.setTags(k % 2 == 0 ? "even" : "odd");
            one.putUserProperty("number", "" + k);
            last = to(0, one);
        }
        DefaultMQPushConsumer tagged = consumer("j-tags"), sql = consumer("j-sql");
        tagged.subscribe("JF", "odd || none");
        sql.subscribe("JF", MessageSelector.bySql("number > 6 AND TAGS = 'odd' OR number = 0"));
        List<MessageExt> odd = collecting(tagged), large = collecting(sql);
        until(() -> odd.size() >= 5 && large.size() >= 3);
        Thread.sleep(QUIET_MS);
        note("selected by tags", bodies(odd));
        note("selected by SQL", bodies(large));
        tagged.shutdown();
        sql.shutdown();
        queries(last);
        offsets();
        pulls();
        lite();
    }

    void queries(SendResult last) {
        long end = System.currentTimeMillis() + 60_000;
        failure("query by key",
            () -> bodies(producer.queryMessage("JF", "k-3", 8, 0, end).getMessageList()));
        failure("query by a key of all", () -> new TreeSet<>(
            bodies(producer.queryMessage("JF", "all", 32, 0, end).getMessageList())));
        failure("query by an unknown key", () -> producer.queryMessage("JF", "k-99", 8, 0, end));
        failure("query too early", () -> producer.queryMessage("JF", "k-3", 8, 0, 1000));
        failure("view by id", () -> body(producer.viewMessage("JF", last.getMsgId())));
        failure("view by offset id", () -> body(producer.viewMessage("JF", last.getOffsetMsgId())));
        failure("view an unknown id",
            () -> producer.viewMessage("JF", "0A0000010000000000000000000000E1"));
    }

    void offsets() {
        for (int queue : new int[] {0, 1, 99}) {
            MessageQueue one = new MessageQueue("JF", BROKER, queue);
            String of = " of queue " + queue;
            failure("end" + of, () -> producer.maxOffset(one));
            failure("first" + of, () -> producer.minOffset(one));
            failure("offset by time 0" + of, () -> producer.searchOffset(one, 0));
            failure("offset by a later time" + of,
                () -> producer.searchOffset(one, System.currentTimeMillis() + 60_000));
            failure("earliest time" + of, () -> producer.earliestMsgStoreTime(one) > 0);
        }
    }

    @SuppressWarnings("deprecation")
    void pulls() throws Exception {
        DefaultMQPullConsumer puller = new DefaultMQPullConsumer("j-puller");
        puller.setNamesrvAddr(server);
        puller.setInstanceName(instance());
        puller.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        puller.setMqClientApiTimeout(TIMEOUT_MS);
        puller.start();
        note("queues", new TreeSet<>(puller.fetchSubscribeMessageQueues("JF")));
        MessageQueue full = new MessageQueue("JF", BROKER, 0), empty = new MessageQueue("JF", BROKER, 1);
        for (long offset : new long[] {0, 7, 10, 11, 1000, -1}) {
            failure("pull at " + offset, () -> pulled(puller.pull(full, "*", offset, 4)));
            failure("pull of an empty queue at " + offset,
                () -> pulled(puller.pull(empty, "*", offset, 4)));
        }
        failure("pull of a tag", () -> pulled(puller.pull(full, "odd", 0, 4)));
        failure("pull of no tag", () -> pulled(puller.pull(full, "none", 0, 4)));
        failure("pull of a queue that is not there",
            () -> pulled(puller.pull(new MessageQueue("JF", BROKER, 99), "*", 0, 4)));
        until(() -> { // the client knows the broker's version by its first heartbeat
            failure("pull by SQL", () -> pulled(puller.pull(full, MessageSelector.bySql("TRUE"), 0, 1)));
            return seen.get("pull by SQL").startsWith("FOUND");
        });
        failure("pull by SQL",
            () -> pulled(puller.pull(full, MessageSelector.bySql("number > 7"), 0, 32)));
        failure("pull by SQL that is none",
            () -> pulled(puller.pull(full, MessageSelector.bySql("number > > 7"), 0, 32)));
        failure("committed before", () -> puller.fetchConsumeOffset(full, true));
        until(() -> { // what is read is what the client commits next
            try {
                puller.updateConsumeOffset(full, 6);
            } catch (MQClientException error) {
                return false;
            }
            puller.getDefaultMQPullConsumerImpl().getOffsetStore().persist(full);
            return committed(puller, full) == 6;
        });
        note("committed after", committed(puller, full));
        puller.shutdown();
    }

    @SuppressWarnings("deprecation")
    static long committed(DefaultMQPullConsumer puller, MessageQueue queue) {
        try {
            return puller.fetchConsumeOffset(queue, true);
        } catch (MQClientException error) {
            return -error.getResponseCode();
        }
    }

    static String pulled(PullResult found) {
        List<MessageExt> messages = found.getMsgFoundList();
        return found.getPullStatus() + " " + found.getNextBeginOffset() + " " + found.getMinOffset()
            + " " + found.getMaxOffset() + " " + (messages == null ? "" : bodies(messages));
    }

    void lite() throws Exception {
        DefaultLitePullConsumer lite = new DefaultLitePullConsumer("j-lite");
        lite.setNamesrvAddr(server);
        lite.setInstanceName(instance());
        lite.setMqClientApiTimeout(TIMEOUT_MS);
        lite.setAutoCommit(false);
        lite.start();
        MessageQueue queue = new MessageQueue("JF", BROKER, 0);
        lite.assign(Collections.singletonList(queue));
        lite.seek(queue, 4);
        TreeSet<String> found = new TreeSet<>();
        until(() -> received(lite, found) >= 6);
        note("lite pull", found);
        failure("lite, by time", () -> lite.offsetForTimestamp(queue, 0L));
        // A pull that began before the seek and is answered after it has no place to commit: only
        // the pull from the seek on has.
        until(() -> {
            lite.commitSync();
            if (litely(lite, queue) == 10) {
                return true;
            }
            received(lite, found);
            return false;
        });
        note("lite, committed", litely(lite, queue));
        lite.shutdown();
    }

    /** How many messages from the place of the seek on have come, after one more poll. */
    static int received(DefaultLitePullConsumer lite, Collection<String> found) {
        for (MessageExt one : lite.poll(200)) {
            if (one.getQueueOffset() >= 4) { // it pulls from its assignment on, before the seek
                found.add(body(one));
            }
        }
        return found.size();
    }

    static long litely(DefaultLitePullConsumer lite, MessageQueue queue) {
        try {
            return lite.committed(queue);
        } catch (MQClientException error) {
            return -error.getResponseCode();
        }
    }

    void refusals() throws Exception {
        byte[] large = new byte[(4 << 20) + 1];
        new Random(7).nextBytes(large); // which cannot be compressed
        failure("send too much", () -> to(0, new Message("JN", large)).getSendStatus());
        failure("send too many properties", () -> {
            Message one = message("JN", "x");
            one.putUserProperty("a", new String(new char[33_000]).replace('\0', 'b'));
            return to(0, one).getSendStatus();
        });
        failure("send to a queue that is not there", () -> to(99, message("JN", "x")).getSendStatus());
        failure("send to a closed topic", () -> producer.send(message("JClosed", "x")).getSendStatus());
        failure("send to a queue of a closed topic",
            () -> to(0, message("JClosed", "x")).getSendStatus());
        failure("send to a reserved topic",
            () -> producer.send(message("SCHEDULE_TOPIC_XXXX", "x")).getSendStatus());
        failure("send to a new topic", () -> producer.send(message("JNew", "x")).getSendStatus());
        failure("send to a bad topic", () -> producer.send(message("J New", "x")).getSendStatus());
        failure("routes of no topic", () -> producer.fetchPublishMessageQueues("JNowhere"));
    }

    // -- all of it -----------------------------------------------------------------------------

    Map<String, String> run() throws Exception {
        producer = new DefaultMQProducer("j-producers");
        producer.setNamesrvAddr(server);
        producer.setInstanceName(instance());
        producer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        producer.setMaxMessageSize(8 << 20);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        for (String topic : TOPICS) {
            until(() -> isRouted(topic));
        }
        Map<String, Part> parts = new TreeMap<>();
        parts.put("sends", this::sends);
        parts.put("order", this::order);
        parts.put("retries", this::retries);
        parts.put("transactions", this::transactions);
        parts.put("broadcasts", this::broadcasts);
        parts.put("delays", this::delays);
        parts.put("reads", this::reads);
        parts.put("refusals", this::refusals);
        ExecutorService pool = Executors.newFixedThreadPool(parts.size());
        Map<String, Future<?>> begun = new TreeMap<>();
        parts.forEach((part, does) -> begun.put(part, pool.submit(() -> {
            does.run();
            return null;
        })));
        for (Map.Entry<String, Future<?>> one : begun.entrySet()) {
            try {
                one.getValue().get(2 * SECONDS, TimeUnit.SECONDS);
                note("end of " + one.getKey(), "yes");
            } catch (Exception error) {
                error.printStackTrace();
                note("end of " + one.getKey(), error);
            }
        }
        Map<String, String> named = new TreeMap<>();
        String process = MessageClientIDSetter.createUniqID().substring(0, 16);
        seen.forEach((what, value) -> {
            for (Map.Entry<String, String> id : ids.entrySet()) {
                value = value.replace(id.getKey(), id.getValue());
            }
            value = value.replaceAll(process + "[0-9A-F]+", "<an id>");
            named.put(what, value);
        });
        return named;
    }

    boolean isRouted(String topic) {
        try {
            return !producer.fetchPublishMessageQueues(topic).isEmpty();
        } catch (MQClientException notYet) {
            return false;
        }
    }

    static String quoted(String text) {
        StringBuilder made = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            made.append(one < ' ' || one == '"' || one == '\\'
                ? String.format("\\u%04x", (int) one) : "" + one);
        }
        return made.append('"').toString();
    }

    static String json(Map<String, String> rows) {
        List<String> pairs = new ArrayList<>();
        rows.forEach((what, value) -> pairs.add(quoted(what) + ":" + quoted(value)));
        return "{" + String.join(",", pairs) + "}";
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(2);
        Future<Map<String, String>> theirs = pool.submit(new Differential("a", arguments[0])::run);
        Future<Map<String, String>> ours = pool.submit(new Differential("b", arguments[1])::run);
        System.out.printf("{\"theirs\":%s,\"ours\":%s}%n", json(theirs.get()), json(ours.get()));
        System.exit(0);
    }
}
