import java.util.HashMap;
import java.util.Random;

/** Lookups in a large HashMap: Lookups PASSES. A line after the filling, and after each pass. */
public class Lookups {
  public static void main(String[] arguments) {
    HashMap<Integer, Integer> map = new HashMap<>();
    Random random = new Random(1);
    int[] keys = new int[4000000];
    for (int i = 0; i < keys.length; i++) {
      keys[i] = random.nextInt();
      map.put(keys[i], i);
    }
    System.out.println("filled");
    long sum = 0;
    for (int pass = 0; pass < Integer.parseInt(arguments[0]); pass++) {
      for (long i = 0; i < 3000000; i++) sum += map.get(keys[(int) ((pass * 3000000L + i) * 7919 % keys.length)]);
      System.out.println(sum);
    }
  }
}
