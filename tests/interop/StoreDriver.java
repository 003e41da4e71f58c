import java.io.File;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store directory with the real RocketMQ 4.9.8 store and prints what that store answers:
 * ranges, every queue entry, and key queries, as one line of JSON.
 *
 * Arguments: DIR segmentBytes queueFileBytes indexSlots indexEntries [TOPIC#KEY ...]
 */
public class StoreDriver {
    public static void main(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[1]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[2]));
        config.setMaxHashSlotNum(Integer.parseInt(args[3]));
        config.setMaxIndexNum(Integer.parseInt(args[4]));
        config.setFlushDiskType(FlushDiskType.ASYNC_FLUSH);
        config.setHaListenPort(0);
        DefaultMessageStore store = new DefaultMessageStore(
            config,
            new BrokerStatsManager("interop", true),
            (topic, queueId, offset, tagsCode, storeTime, bitMap, properties) -> { },
            new BrokerConfig());
        if (!store.load()) {
            System.err.println("load failed");
            System.exit(3);
        }
        store.start();
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        StringBuilder out = new StringBuilder();
        out.append("{\"min_phy\":").append(store.getMinPhyOffset());
        out.append(",\"max_phy\":").append(store.getMaxPhyOffset());
        out.append(",\"queues\":{");
        Map<String, ConsumeQueue> queues = new TreeMap<>();
        for (Map.Entry<String, ConcurrentMap<Integer, ConsumeQueue>> topic
            : store.getConsumeQueueTable().entrySet()) {
            for (Map.Entry<Integer, ConsumeQueue> queue : topic.getValue().entrySet()) {
                queues.put(topic.getKey() + "/" + queue.getKey(), queue.getValue());
            }
        }
        boolean first = true;
        for (Map.Entry<String, ConsumeQueue> queue : queues.entrySet()) {
            out.append(first ? "" : ",");
            first = false;
            printQueue(out, queue.getKey(), queue.getValue());
        }
        out.append("},\"queries\":[");
        for (int k = 5; k < args.length; k++) {
            String[] parts = args[k].split("#", 2);
            out.append(k > 5 ? "," : "");
            printQuery(out, store, parts[0], parts[1]);
        }
        out.append("]}");
        System.out.println(out);
        store.shutdown();
        System.exit(0);
    }

    private static void printQueue(StringBuilder out, String name, ConsumeQueue queue) {
        long min = queue.getMinOffsetInQueue();
        long max = queue.getMaxOffsetInQueue();
        out.append('"').append(name).append("\":{\"min\":").append(min);
        out.append(",\"max\":").append(max).append(",\"entries\":[");
        for (long at = min; at < max; ) {
            SelectMappedBufferResult found = queue.getIndexBuffer(at);
            for (int read = 0; read < found.getSize() && at < max; read += 20, at++) {
                out.append(at > min ? "," : "").append('[');
                out.append(found.getByteBuffer().getLong()).append(',');
                out.append(found.getByteBuffer().getInt()).append(',');
                out.append(found.getByteBuffer().getLong()).append(']');
            }
            found.release();
        }
        out.append("]}");
    }

    private static void printQuery(
        StringBuilder out, DefaultMessageStore store, String topic, String key) {
        QueryMessageResult found = store.queryMessage(topic, key, 32, 0, Long.MAX_VALUE);
        List<Long> offsets = new ArrayList<>();
        for (ByteBuffer message : found.getMessageBufferList()) {
            offsets.add(message.getLong(28));  // a record names its own offset
        }
        found.release();
        out.append("{\"topic\":\"").append(topic).append("\",\"key\":\"").append(key);
        out.append("\",\"phy\":").append(Arrays.toString(offsets.toArray()).replace(" ", ""));
        out.append('}');
    }
}
