// RocketMQ's mqadmin: a producer and a consumer are connected, then sub-commands run, one after the other.
// Arguments: HOST:PORT of a name server, and a file of command lines, whose words are separated by tabs.
// Prints each line behind "##### ", and what the sub-command prints. @UNIQUE_ID, @OFFSET_ID and @CLIENT stand for
// the ids of a message and of the consumer; @help lists the sub-commands, @ext makes other calls.

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingException;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

public class MqAdmin {
    static final int MESSAGES = 10;

    // Calls of the dashboard and the exporter that no sub-command makes, or none in this way.
    static void calls(String server, String client, String id) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(server);
        admin.setInstanceName("ext");
        admin.start();
        System.out.println("spans " + admin.queryConsumeTimeSpan("T", "C").size());
        System.out.println("reached " + admin.getConsumeStatus("T", "C", client).get(client).size());
        System.out.println("topics " + admin.fetchTopicsByCLuster("DefaultCluster").getTopicList().contains("T"));
        System.out.println("clusters " + admin.getTopicClusterList("T"));
        System.out.println("puts " + admin.viewBrokerStatsData(server, "TOPIC_PUT_NUMS", "T").getStatsDay().getSum());
        System.out.println("gets " + admin.viewBrokerStatsData(server, "GROUP_GET_NUMS", "T@C").getStatsDay().getSum());
        System.out.println("boot " + admin.fetchBrokerRuntimeStats(server).getTable().get("bootTimestamp"));
        System.out.println("direct " + admin.consumeMessageDirectly("C", client, "T", id).getConsumeResult());
        System.out.println("readers " + admin.queryTopicConsumeByWho("T").getGroupList());
        System.out.println("producers " + admin.getAllProducerInfo(server).getData().keySet());
        admin.shutdown();
    }

    // Returns once the broker knows both clients, by their heartbeats, and the offsets of all messages: the last
    // listener may not have returned yet, and nobody answers what stores offsets.
    static void known(String server, DefaultMQPushConsumer consumer) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(server);
        admin.setInstanceName("known");
        admin.start();
        long end = System.currentTimeMillis() + 120_000;
        while (!isKnown(admin)) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("the broker does not know what was consumed");
            }
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            Thread.sleep(50);
        }
        admin.shutdown();
    }

    static boolean isKnown(DefaultMQAdminExt admin) throws Exception {
        try {
            long consumed = admin.examineConsumeStats("C", "T").getOffsetTable().values().stream()
                .mapToLong(one -> one.getConsumerOffset()).sum();
            return consumed == MESSAGES
                && !admin.examineProducerConnectionInfo("P", "T").getConnectionSet().isEmpty()
                && !admin.examineConsumerConnectionInfo("C").getConnectionSet().isEmpty();
        } catch (MQClientException | MQBrokerException | RemotingException error) {
            return false;
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        System.setOut(out);
        System.setErr(out);
        DefaultMQProducer producer = new DefaultMQProducer("P");
        producer.setNamesrvAddr(arguments[0]);
        producer.setHeartbeatBrokerInterval(500);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        CountDownLatch consumed = new CountDownLatch(MESSAGES);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("C");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.setPollNameServerInterval(500); // a broker makes the topic with the first message
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("T", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> consumed.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        SendResult first = null;
        for (int k = 0; k < MESSAGES; k++) {
            Message made = new Message("T", "red", "key" + k, ("body" + k).getBytes(StandardCharsets.UTF_8));
            SendResult sent = producer.send(made);
            first = first == null ? sent : first;
        }
        if (!consumed.await(120, TimeUnit.SECONDS)) {
            throw new IllegalStateException("messages were not consumed");
        }
        known(arguments[0], consumer);
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        for (String given : Files.readAllLines(Paths.get(arguments[1]))) {
            out.println("##### " + given);
            String line = given.replace("@UNIQUE_ID", first.getMsgId())
                .replace("@OFFSET_ID", first.getOffsetMsgId())
                .replace("@CLIENT", client);
            if (line.startsWith("@ext")) {
                calls(arguments[0], client, first.getMsgId());
            } else if (line.startsWith("@help")) {
                MQAdminStartup.main(new String[0]);
            } else {
                MQAdminStartup.main(line.split("\t"));
            }
            out.flush();
        }
        out.println("##### end");
        out.flush();
        System.exit(0);
    }
}
