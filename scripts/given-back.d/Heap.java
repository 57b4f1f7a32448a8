// A heap that grows, gives most of itself back, and grows again near its limit. usage: Heap MIB KEEP_PERCENT IDLE_SECONDS AGAIN_MIB
import java.util.ArrayList;
import java.util.Random;

public class Heap {
    static final Random RANDOM = new Random(1);

    static void mark(String name) throws InterruptedException {
        System.out.println("mark " + name);
        System.out.flush();
        Thread.sleep(300);
    }

    static ArrayList<byte[]> fill(long bytes) {
        ArrayList<byte[]> objects = new ArrayList<>();
        for (long used = 0; used < bytes; ) {
            byte[] object = new byte[64 << RANDOM.nextInt(11)];
            java.util.Arrays.fill(object, (byte) objects.size());
            used += object.length;
            objects.add(object);
        }
        return objects;
    }

    static void check(ArrayList<byte[]> objects) {
        for (int number = 0; number < objects.size(); number++) {
            byte[] object = objects.get(number);
            for (int at = 0; object != null && at < object.length; at += 61)
                if (object[at] != (byte) number) {
                    System.out.println("wrong contents");
                    System.exit(4);
                }
        }
    }

    public static void main(String[] words) throws InterruptedException {
        ArrayList<byte[]> objects = fill(Long.parseLong(words[0]) << 20);
        mark("filled");
        for (long end = System.nanoTime() + 2_000_000_000L; System.nanoTime() < end; )
            check(objects);
        for (int number = 0; number < objects.size(); number++)
            if (RANDOM.nextInt(100) >= Integer.parseInt(words[1]))
                objects.set(number, null);
        System.gc();
        mark("freed");
        for (long end = System.nanoTime() + Long.parseLong(words[2]) * 1_000_000_000L; System.nanoTime() < end; ) {
            check(objects);
            Thread.sleep(20);
        }
        System.gc();
        mark("idled");
        ArrayList<byte[]> more = fill(Long.parseLong(words[3]) << 20);
        mark("grown");
        check(objects);
        check(more);
        System.out.println("ended well");
    }
}
