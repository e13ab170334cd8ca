// Makes and reads what the conformance vectors have, by the client in C#: the orders of probe.c, but for "dial".

using System;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.Serialization;
using System.Text;

internal static class Probe
{
    private const BindingFlags Hidden = BindingFlags.NonPublic | BindingFlags.Instance | BindingFlags.Static;

    private static byte[] Bytes(string hex) =>
        hex == "-" ? new byte[0]
                   : Enumerable.Range(0, hex.Length / 2).Select(i => Convert.ToByte(hex.Substring(2 * i, 2), 16)).ToArray();

    private static string Hex(byte[] bytes) => BitConverter.ToString(bytes).Replace("-", "").ToLowerInvariant();

    /// <summary>Calls a method of the client that is its own; a client that speaks to <paramref name="stream"/>.</summary>
    private static object Call(Stream stream, string method, params object[] given)
    {
        object client = FormatterServices.GetUninitializedObject(typeof(SeedbedClient));
        GC.SuppressFinalize(client);
        typeof(SeedbedClient).GetField("stream", Hidden).SetValue(client, stream);
        try
        {
            return typeof(SeedbedClient).GetMethod(method, Hidden).Invoke(client, given);
        }
        catch (TargetInvocationException error) { throw error.InnerException; }
    }

    private static string Unpack(byte[] bytes)
    {
        var stream = new MemoryStream(bytes);
        object[] found = { 0, 0, 0L };
        try
        {
            Call(stream, "Hear", found);
        }
        catch (SeedbedException error) when (bytes.Length >= 16 && bytes[0] == 'S' && (bytes[3] == 3 || bytes[3] == 7))
        {
            string said = Hex(Encoding.UTF8.GetBytes(error.Message));
            return bytes[3] + " " + BitConverter.ToInt32(bytes, 4) + " " + (said == "" ? "-" : said);
        }
        byte[] body = bytes.Skip(16).ToArray();
        if ((long)found[2] != body.Length) throw new SeedbedException("another length");
        return found[0] + " " + found[1] + " " + (body.Length == 0 ? "-" : Hex(body));
    }

    private static string Layout(string json)
    {
        object layout = Call(null, "ReadLayout", json);
        Func<string, object> part = name => layout.GetType().GetField(name, Hidden | BindingFlags.Public).GetValue(layout);
        var offsets = (System.Collections.IEnumerable)part("Offsets");
        return string.Join(" ", new[] { part("Total") }.Concat(offsets.Cast<object>()));
    }

    private static string Answer(string line)
    {
        string[] word = line.Split(' ');
        switch (word[0])
        {
            case "pack":
                var sent = new MemoryStream();
                Call(sent, "Say", int.Parse(word[1]), int.Parse(word[2]), Bytes(word[3]));
                return Hex(sent.ToArray());
            case "unpack": return Unpack(Bytes(word[1]));
            case "layout": return Layout(line.Substring(7));
            default:
                byte[] known = Bytes(word[3]), bound = Bytes(word[2]);
                return string.Join(" ", new[] { "client", "server" }.Select(
                    side => Hex((byte[])Call(null, "Mac", word[1], side, bound, known))));
        }
    }

    private static void Main()
    {
        for (string line; (line = Console.ReadLine()) != null;)
        {
            try
            {
                Console.WriteLine(Answer(line));
            }
            catch (SeedbedException)
            {
                Console.WriteLine("refused");
            }
        }
    }
}
