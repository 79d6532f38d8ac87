// Starts a Java program of any kind. Job on descriptor 3 (JSON, then the nonce), result on descriptor 4.
// The main thread has 64 MiB of stack. A function's arguments are converted to its parameter types, its value is
// written as sandbox/values.py reads it; an assert run is complete when its main has returned.

package sandbox;

import java.io.*;
import java.lang.reflect.*;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.*;

public final class Launch {
    private static final int NONCE = 32;
    private static byte[] job;

    public static void main(String[] arguments) throws Exception {
        try (FileInputStream in = new FileInputStream(descriptor(3))) {
            job = in.readAllBytes();
        }
        String text = new String(job, 0, job.length - NONCE, StandardCharsets.UTF_8);
        Map<?, ?> request = (Map<?, ?>) new Json(text).read();
        Thread thread = new Thread(null, () -> run(request, arguments), "main", 64L << 20);
        thread.start();
    }

    private static FileDescriptor descriptor(int number) throws ReflectiveOperationException {
        Constructor<FileDescriptor> make = FileDescriptor.class.getDeclaredConstructor(int.class);
        make.setAccessible(true);
        return make.newInstance(number);
    }

    private static void run(Map<?, ?> request, String[] arguments) {
        String stage = "program";
        try {
            if ("function".equals(request.get("kind"))) {
                Callee callee = Callee.find((String) request.get("fn_name"), (List<?>) request.get("args"));
                stage = "call";
                Object value = callee.call();
                stage = "value";
                answer("{\"ok\": true, \"values\": [" + Encode.text(value) + "]}");
                Runtime.getRuntime().halt(0);
            }
            stage = "call";
            ClassLoader.getSystemClassLoader().setDefaultAssertionStatus((Boolean) request.get("asserts"));
            start(arguments);
            if ("assert".equals(request.get("kind"))) answer("{\"ok\": true, \"values\": []}");
        } catch (InvocationTargetException error) {
            complain(error.getCause(), stage);
        } catch (Throwable error) {
            complain(error, stage);
        }
    }

    private static void start(String[] arguments) throws Exception {
        String name;
        try (InputStream in = Launch.class.getResourceAsStream("/META-INF/MANIFEST.MF")) {
            name = new java.util.jar.Manifest(in).getMainAttributes().getValue("Program-Class");
        }
        if (name == null) throw new NoSuchMethodException("no class has a main(String[])");
        Method main = Class.forName(name).getDeclaredMethod("main", String[].class);
        main.setAccessible(true);
        Object receiver = Modifier.isStatic(main.getModifiers()) ? null : Callee.make(main.getDeclaringClass());
        main.invoke(receiver, (Object) arguments);
    }

    /** Tells the judge, and people on stderr, how the program failed; then ends with 1, as an uncaught exception does. */
    private static void complain(Throwable error, String stage) {
        boolean memory = error instanceof OutOfMemoryError;
        String kind = memory ? "memory" : error instanceof AssertionError ? "assertion" : "error";
        try {
            if (!memory) error.printStackTrace();
            String text = Encode.quote(error.toString());
            answer("{\"ok\": false, \"error\": " + text + ", \"stage\": \"" + stage + "\", \"kind\": \"" + kind + "\"}");
            System.out.flush();
        } catch (Throwable again) {
            System.err.println(again);
        }
        Runtime.getRuntime().halt(1);
    }

    private static void answer(String body) throws Exception {
        System.out.flush();
        try (FileOutputStream out = new FileOutputStream(descriptor(4))) {
            out.write(job, job.length - NONCE, NONCE);
            out.write(body.getBytes(StandardCharsets.UTF_8));
        }
    }
}

/** The method that a function problem names, with its arguments converted. */
final class Callee {
    final Class<?> owner;
    final Method method;
    final Object[] arguments;

    private Callee(Class<?> owner, Method method, Object[] arguments) {
        this.owner = owner;
        this.method = method;
        this.arguments = arguments;
    }

    /** "Class.method"; a plain name is looked for in Solution, then in Main. Overloads: the first that takes the values. */
    static Callee find(String name, List<?> values) throws ReflectiveOperationException {
        int dot = name.indexOf('.');
        String[] classes = dot < 0 ? new String[] {"Solution", "Main"} : new String[] {name.substring(0, dot)};
        IllegalArgumentException misfit = null;
        for (String owner : classes) {
            Class<?> found;
            try {
                found = load(owner);
            } catch (ClassNotFoundException error) {
                continue;
            }
            for (Method method : methods(found)) {
                if (!method.getName().equals(name.substring(dot + 1)) || method.isBridge()) continue;
                List<?> given = method.isVarArgs() ? gathered(method, values) : values;
                if (method.getParameterCount() != given.size()) continue;
                try {
                    return new Callee(found, method, convert(method, given));
                } catch (IllegalArgumentException error) {
                    misfit = error;
                }
            }
        }
        if (misfit != null) throw misfit;
        throw new NoSuchMethodException(name + " with " + values.size() + " parameters");
    }

    /** Its own first, then what it inherits: from classes, nearest first, then from interfaces. */
    private static List<Method> methods(Class<?> owner) {
        List<Method> all = new ArrayList<>();
        for (Class<?> kind = owner; kind != null; kind = kind.getSuperclass()) all.addAll(Arrays.asList(kind.getDeclaredMethods()));
        all.addAll(Arrays.asList(owner.getMethods()));
        all.removeIf(method -> Modifier.isAbstract(method.getModifiers()));
        return all;
    }

    /** A class by its plain name, in whatever package. */
    private static Class<?> load(String name) throws ClassNotFoundException {
        try {
            return Class.forName(name);
        } catch (ClassNotFoundException error) {
            try (java.util.jar.JarFile jar = new java.util.jar.JarFile(System.getProperty("java.class.path"))) {
                for (java.util.jar.JarEntry entry : Collections.list(jar.entries())) {
                    String path = entry.getName();
                    if (path.endsWith("/" + name + ".class")) return Class.forName(path.substring(0, path.length() - 6).replace('/', '.'));
                }
            } catch (IOException unread) {
                throw new ClassNotFoundException(name, unread);
            }
            throw error;
        }
    }

    /** What is left over is the last parameter's, unless it is there as a list already. */
    private static List<?> gathered(Method method, List<?> values) {
        int last = method.getParameterCount() - 1;
        if (values.size() < last || (values.size() == last + 1 && values.get(last) instanceof List)) return values;
        List<Object> all = new ArrayList<>(values.subList(0, last));
        all.add(new ArrayList<>(values.subList(last, values.size())));
        return all;
    }

    private static Object[] convert(Method method, List<?> values) {
        Type[] types = method.getGenericParameterTypes();
        Object[] arguments = new Object[types.length];
        for (int i = 0; i < types.length; i++) arguments[i] = Convert.to(types[i], values.get(i));
        return arguments;
    }

    Object call() throws ReflectiveOperationException {
        method.setAccessible(true);
        boolean isStatic = Modifier.isStatic(method.getModifiers());
        return method.invoke(isStatic ? null : make(owner), arguments);
    }

    static Object make(Class<?> kind) throws ReflectiveOperationException {
        Constructor<?> constructor = kind.getDeclaredConstructor();
        constructor.setAccessible(true);
        return constructor.newInstance();
    }
}

/** JSON values to the types of parameters. */
@SuppressWarnings("unchecked")
final class Convert {
    static Object to(Type type, Object value) {
        if (type instanceof GenericArrayType) return array(((GenericArrayType) type).getGenericComponentType(), value);
        if (type instanceof Class && ((Class<?>) type).isArray()) return array(((Class<?>) type).getComponentType(), value);
        if (type instanceof ParameterizedType) return generic((ParameterizedType) type, value);
        if (type instanceof Class) return plain((Class<?>) type, value);
        if (type instanceof WildcardType) return to(((WildcardType) type).getUpperBounds()[0], value);
        if (type instanceof TypeVariable) return to(((TypeVariable<?>) type).getBounds()[0], value);
        return natural(value);
    }

    /** A value as Java itself would hold it, where the type says nothing: integers are Integer, or Long, if they fit. */
    private static Object natural(Object value) {
        if (value instanceof List) ((List<Object>) value).replaceAll(Convert::natural);
        if (value instanceof Map) ((Map<?, Object>) value).replaceAll((key, item) -> natural(item));
        if (!(value instanceof BigInteger)) return value;
        BigInteger big = (BigInteger) value;
        if (big.bitLength() < 32) return big.intValue();
        return big.bitLength() < 64 ? (Object) big.longValue() : big;
    }

    private static Class<?> raw(Type type) {
        if (type instanceof Class) return (Class<?>) type;
        if (type instanceof ParameterizedType) return raw(((ParameterizedType) type).getRawType());
        if (type instanceof GenericArrayType) return Array.newInstance(raw(((GenericArrayType) type).getGenericComponentType()), 0).getClass();
        if (type instanceof TypeVariable) return raw(((TypeVariable<?>) type).getBounds()[0]);
        return Object.class;
    }

    private static Object array(Type item, Object value) {
        if (value == null) return null;
        if (item == char.class && value instanceof String) return ((String) value).toCharArray();
        List<?> values = (List<?>) check(value, List.class, "a list");
        Object array = Array.newInstance(raw(item), values.size());
        for (int i = 0; i < values.size(); i++) Array.set(array, i, to(item, values.get(i)));
        return array;
    }

    private static Object generic(ParameterizedType type, Object value) {
        Type[] items = type.getActualTypeArguments();
        Class<?> kind = raw(type);
        if (kind == Optional.class) return value == null ? Optional.empty() : Optional.of(to(items[0], value));
        if (value == null) return null;
        if (Map.class.isAssignableFrom(kind)) {
            Map<Object, Object> map = SortedMap.class.isAssignableFrom(kind) ? new TreeMap<>() : new LinkedHashMap<>();
            ((Map<?, ?>) check(value, Map.class, "an object")).forEach((k, v) -> map.put(key(items[0], (String) k), to(items[1], v)));
            return kind == HashMap.class ? new HashMap<>(map) : map;
        }
        if (kind == Comparable.class) return natural(value);
        Collection<Object> all = kind == Iterator.class ? new ArrayList<>() : collection(kind);
        for (Object item : (List<?>) check(value, List.class, "a list")) all.add(to(items[0], item));
        return kind == Iterator.class ? all.iterator() : all;
    }

    private static Object key(Type type, String text) {
        Class<?> kind = raw(type);
        return kind == String.class || kind == Object.class || kind == Character.class
            ? to(type, text) : to(type, new Json(text).read());
    }

    private static Collection<Object> collection(Class<?> kind) {
        if (kind.isAssignableFrom(ArrayList.class)) return new ArrayList<>();
        if (kind.isAssignableFrom(LinkedHashSet.class)) return new LinkedHashSet<>();
        if (kind.isAssignableFrom(LinkedList.class)) return new LinkedList<>();
        if (kind.isAssignableFrom(ArrayDeque.class)) return new ArrayDeque<>();
        if (kind.isAssignableFrom(TreeSet.class)) return new TreeSet<>();
        try {
            return (Collection<Object>) kind.getConstructor().newInstance();
        } catch (ReflectiveOperationException | ClassCastException error) {
            throw new IllegalArgumentException("no values of " + kind.getName());
        }
    }

    private static Object plain(Class<?> kind, Object value) {
        if (kind == Object.class || kind == Comparable.class || kind == Iterable.class) return natural(value);
        if (value == null && !kind.isPrimitive()) return null;
        if (kind == String.class || kind == CharSequence.class) return check(value, String.class, "a text");
        if (kind == StringBuilder.class) return new StringBuilder((String) check(value, String.class, "a text"));
        if (kind == boolean.class || kind == Boolean.class) return check(value, Boolean.class, "a truth value");
        if (kind == char.class || kind == Character.class) {
            String text = (String) check(value, String.class, "a character");
            if (text.length() != 1) throw new IllegalArgumentException("a character wanted");
            return text.charAt(0);
        }
        if (List.class.isAssignableFrom(kind) || kind == Collection.class || Map.class.isAssignableFrom(kind)) return natural(value);
        Number number = (Number) check(value, Number.class, "a number");
        if (kind == double.class || kind == Double.class) return number.doubleValue();
        if (kind == float.class || kind == Float.class) return number.floatValue();
        if (kind == Number.class) return natural(number);
        return whole(kind, number);
    }

    private static Object whole(Class<?> kind, Number number) {
        if (!(number instanceof BigInteger)) throw new IllegalArgumentException("an integer wanted, not " + number);
        BigInteger big = (BigInteger) number;
        try {
            if (kind == int.class || kind == Integer.class) return big.intValueExact();
            if (kind == long.class || kind == Long.class) return big.longValueExact();
            if (kind == short.class || kind == Short.class) return big.shortValueExact();
            if (kind == byte.class || kind == Byte.class) return big.byteValueExact();
        } catch (ArithmeticException error) {
            throw new IllegalArgumentException(number + " does not fit into " + kind.getName());
        }
        if (kind == BigInteger.class) return big;
        throw new IllegalArgumentException("no values of " + kind.getName());
    }

    private static Object check(Object value, Class<?> kind, String what) {
        if (!kind.isInstance(value)) throw new IllegalArgumentException(what + " wanted, not " + value);
        return value;
    }
}

/** Values to the tagged JSON of sandbox/values.py. */
final class Encode {
    static String text(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out, 0);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out, int depth) {
        if (depth > 200) throw new IllegalArgumentException("a value nested deeper than 200");
        if (value instanceof Optional) value = ((Optional<?>) value).orElse(null);
        if (value == null || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof CharSequence || value instanceof Character) {
            out.append(quote(value.toString()));
        } else if (value instanceof Double || value instanceof Float) {
            out.append(value);
        } else if (value instanceof Number && !(value instanceof java.math.BigDecimal)) {
            BigInteger whole = new BigInteger(value.toString());
            if (whole.bitLength() < 53) out.append(whole);
            else out.append("{\"i\":\"").append(whole.signum() < 0 ? "-0x" : "0x").append(whole.abs().toString(16)).append("\"}");
        } else if (value instanceof Map) {
            writeMap((Map<?, ?>) value, out, depth + 1);
        } else if (value instanceof Collection) {
            writeAll(((Collection<?>) value).toArray(), out, depth + 1);
        } else if (value.getClass().isArray()) {
            writeAll(value, out, depth + 1);
        } else {
            throw new IllegalArgumentException("returned a " + value.getClass().getName() + ", which has no JSON form");
        }
    }

    private static void writeAll(Object array, StringBuilder out, int depth) {
        out.append('[');
        for (int i = 0, n = Array.getLength(array); i < n; i++) {
            if (i > 0) out.append(',');
            write(Array.get(array, i), out, depth);
        }
        out.append(']');
    }

    private static void writeMap(Map<?, ?> map, StringBuilder out, int depth) {
        out.append("{\"d\":[");
        String comma = "";
        for (Map.Entry<?, ?> entry : map.entrySet()) {
            out.append(comma);
            writeAll(new Object[] {entry.getKey(), entry.getValue()}, out, depth);
            comma = ",";
        }
        out.append("]}");
    }

    static String quote(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') out.append('\\').append(c);
            else if (c < 32 || Character.isSurrogate(c)) out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }
}

/** A reader of the JSON that the judge has checked: integers are BigInteger, other numbers Double. */
final class Json {
    private final String text;
    private int at;

    Json(String text) { this.text = text; }

    Object read() {
        skip();
        char c = text.charAt(at);
        if (c == '[') return list();
        if (c == '{') return object();
        if (c == '"') return string();
        int start = at;
        while (at < text.length() && ",]} \t\r\n:".indexOf(text.charAt(at)) < 0) at++;
        String word = text.substring(start, at);
        switch (word) {
            case "null": return null;
            case "true": return true;
            case "false": return false;
            default: return word.matches("-?\\d+") ? (Object) new BigInteger(word) : (Object) Double.valueOf(word);
        }
    }

    private void skip() {
        while (at < text.length() && Character.isWhitespace(text.charAt(at))) at++;
    }

    /** Passes over a comma; false at the closing bracket. */
    private boolean more(char end) {
        skip();
        if (text.charAt(at) == ',') at++;
        skip();
        if (text.charAt(at) != end) return true;
        at++;
        return false;
    }

    private List<Object> list() {
        List<Object> all = new ArrayList<>();
        at++;
        while (more(']')) all.add(read());
        return all;
    }

    private Map<String, Object> object() {
        Map<String, Object> all = new LinkedHashMap<>();
        at++;
        while (more('}')) {
            String key = string();
            skip();
            at++; // the colon
            all.put(key, read());
        }
        return all;
    }

    private String string() {
        StringBuilder out = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            char c = text.charAt(at);
            if (c == '\\') c = escape(text.charAt(++at));
            out.append(c);
        }
        at++;
        return out.toString();
    }

    private char escape(char c) {
        if (c == 'u') {
            at += 4;
            return (char) Integer.parseInt(text.substring(at - 3, at + 1), 16);
        }
        int known = "nrtbf".indexOf(c);
        return known < 0 ? c : "\n\r\t\b\f".charAt(known);
    }
}
