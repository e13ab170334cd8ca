// A world in C# that learns under SEED: a ball falls through a board, and a paddle in the lowest row catches it.
//
//     mcs -out:catch.exe Catch.cs Seedbed.cs
//     mono catch.exe ADDRESS JOIN [STEPS]   plays until the run is over, or for STEPS steps; prints the mean return
//
// ADDRESS and JOIN are what `seedbed train foreign:clients/c/catch.json --agent vtrace --actors 0 --listen ...` or
// `seedbed serve` printed.

using System;

internal static class Catch
{
    private const int Height = 10, Width = 5;

    /// <summary>The environments of one lane, and the arrays of their step.</summary>
    private sealed class Boards
    {
        private readonly int[] row, column, paddle;
        private readonly byte[] terminated, truncated, first;
        private readonly float[] observation, reward;
        private readonly Random random;

        public long Steps, Episodes, Caught;

        public Boards(int rows, long seed)
        {
            row = new int[rows];
            column = new int[rows];
            paddle = new int[rows];
            terminated = new byte[rows];
            truncated = new byte[rows];
            first = new byte[rows];
            reward = new float[rows];
            observation = new float[rows * Height * Width];
            random = new Random((int)(seed ^ (seed >> 32)));
            for (int i = 0; i < rows; i++) Begin(i);
        }

        /// <summary>The step as the layout has it: observation, reward, terminated, truncated, first.</summary>
        public Array[] Shown()
        {
            Array.Clear(observation, 0, observation.Length);
            for (int i = 0; i < row.Length; i++)
            {
                observation[(i * Height + row[i]) * Width + column[i]] = 1;
                observation[(i * Height + Height - 1) * Width + paddle[i]] = 1;
            }
            return new Array[] { observation, reward, terminated, truncated, first };
        }

        public void Step(int[] action)
        {
            for (int i = 0; i < row.Length; i++)
            {
                if (terminated[i] == 1) // the step after the last one of an episode shows the next one's beginning
                {
                    Begin(i);
                    continue;
                }
                paddle[i] = Math.Max(0, Math.Min(Width - 1, paddle[i] + action[i] - 1));
                bool over = ++row[i] == Height - 1, caught = over && column[i] == paddle[i];
                reward[i] = !over ? 0 : caught ? 1 : -1;
                terminated[i] = (byte)(over ? 1 : 0);
                first[i] = 0;
                Steps++;
                if (over) Episodes++;
                if (caught) Caught++;
            }
        }

        private void Begin(int i)
        {
            row[i] = 0;
            column[i] = random.Next(Width);
            paddle[i] = Width / 2;
            reward[i] = terminated[i] = 0;
            first[i] = 1;
        }
    }

    private static int Main(string[] given)
    {
        long most = given.Length > 2 ? long.Parse(given[2]) : long.MaxValue, steps = 0, episodes = 0, caught = 0;
        string reason = "enough";
        bool over = true;
        try
        {
            using (var run = new SeedbedClient(given[0], given.Length > 1 ? given[1] : "", seconds: 60))
            {
                var lanes = new Boards[run.Lanes];
                var action = new int[run.Rows];
                for (int lane = 0; lane < lanes.Length; lane++)
                {
                    lanes[lane] = new Boards(run.Rows, run.Seed(lane));
                    run.Send(lane, lanes[lane].Shown());
                }
                try
                {
                    while (steps < most)
                    {
                        int lane = run.Receive();
                        run.CopyAction(lane, action);
                        long before = lanes[lane].Steps;
                        lanes[lane].Step(action);
                        steps += lanes[lane].Steps - before;
                        run.Send(lane, lanes[lane].Shown());
                    }
                }
                catch (SeedbedException end)
                {
                    reason = end.Message;
                    over = end.Over;
                }
                foreach (Boards one in lanes)
                {
                    episodes += one.Episodes;
                    caught += one.Caught;
                }
            }
        }
        catch (SeedbedException error)
        {
            Console.Error.WriteLine("catch: " + error.Message);
            return 1;
        }
        double mean = episodes == 0 ? 0 : (2.0 * caught - episodes) / episodes;
        Console.WriteLine(FormattableString.Invariant(
            $"{steps} steps, {episodes} episodes, mean return {mean:F3}: {reason}"));
        return over ? 0 : 1;
    }
}
